//! Student's t distribution: the probability of a difference without a change.
//!
//! The tails are regularized incomplete beta functions, computed with Lentz's continued fraction
//! (Press et al., Numerical Recipes, 6.4) and Lanczos's gamma function.

/// Maximum degrees of freedom. More make no visible difference (1.962 instead of 1.960).
const FREEDOM_MAX: f64 = 1000.0;
/// Maximum number of steps of the fraction. With this few degrees of freedom it converges far
/// earlier.
const STEPS_MAX: u32 = 300;

/// Returns the probability of a value at least this far from 0, on either side.
pub(super) fn two_sided(t: f64, freedom: f64) -> f64 {
    let freedom = freedom.clamp(1.0, FREEDOM_MAX);
    beta(freedom / (freedom + t * t), freedom / 2.0, 0.5).clamp(0.0, 1.0)
}

/// Returns the distance from 0 that has this probability, for probabilities of 1 % or more.
pub(super) fn quantile(chance: f64, freedom: f64) -> f64 {
    // The widest distance is that of 1 % with 1 degree of freedom. This many halvings make it exact
    // to nine digits.
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..36 {
        let middle = (low + high) / 2.0;
        if two_sided(middle, freedom) > chance { low = middle } else { high = middle }
    }
    high
}

/// Returns the regularized incomplete beta function.
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let log = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    let front = log.exp();
    // The fraction converges fast only on this side of the middle.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(x, a, b) / a
    } else {
        1.0 - front * fraction(1.0 - x, b, a) / b
    }
}

fn fraction(x: f64, a: f64, b: f64) -> f64 {
    let kept = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / kept(1.0 - (a + b) * x / (a + 1.0));
    let mut result = d;
    for step in 1..=STEPS_MAX {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = result;
        for term in [even, odd] {
            d = 1.0 / kept(1.0 + term * d);
            c = kept(1.0 + term / c);
            result *= c * d;
        }
        if (result - before).abs() <= 1e-13 * result.abs() {
            break;
        }
    }
    result
}

/// Returns the logarithm of the gamma function of a positive number.
fn ln_gamma(x: f64) -> f64 {
    const FIRST: f64 = 1.000_000_000_190_015;
    const MORE: [f64; 6] = [
        76.180_091_729_471_46,
        -86.505_320_329_416_77,
        24.014_098_240_830_91,
        -1.231_739_572_450_155,
        0.001_208_650_973_866_179,
        -0.000_005_395_239_384_953,
    ];
    let shifted = x + 5.5;
    let mut sum = FIRST;
    for (index, term) in (1..).zip(MORE) {
        sum += term / (x + f64::from(index));
    }
    (x + 0.5) * shifted.ln() - shifted + (std::f64::consts::TAU.sqrt() * sum / x).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values come from printed tables.
    #[test]
    fn quantiles_are_those_of_tables() {
        for (freedom, expected) in
            [(1.0, 12.706), (2.0, 4.303), (5.0, 2.571), (19.0, 2.093), (38.0, 2.024), (1e9, 1.962)]
        {
            let found = quantile(0.05, freedom);
            assert!((found - expected).abs() < 0.001, "{freedom}: {found}");
        }
        assert!((quantile(0.01, 10.0) - 3.169).abs() < 0.001);
    }

    #[test]
    fn tails_become_thin_and_stay_chances() {
        assert_eq!(two_sided(0.0, 7.0), 1.0);
        let far = two_sided(20.0, 38.0);
        assert!(far > 0.0 && far < 1e-15, "{far}");
        for t in [1e-9, 0.1, 1.0, 3.0, 50.0, 1e9, f64::INFINITY] {
            for freedom in [0.0, 1.0, 3.5, 30.0, 1e12] {
                let chance = two_sided(t, freedom);
                assert!((0.0..=1.0).contains(&chance), "{t} {freedom}: {chance}");
            }
        }
    }
}
