//! Counts of managed frames, by language.

use crate::record::contract::number_format::percent;
use crate::record::contract::summary::NamedShare;
use crate::record::name::managed::locations::ManagedLocation;
use crate::runtime::{Gone, ManagedLanguage};

/// Counts of the frames of one language.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LanguageCount {
    /// The number of frames.
    pub(crate) frames: u64,
    /// The number of frames without a name, by reason, in the order of [`Gone::ALL`].
    pub(crate) gone: [u64; Gone::ALL.len()],
    /// The number of samples whose innermost managed frame is of this language.
    pub(crate) samples: u64,
    /// The number of these samples in which that frame has a name.
    pub(crate) named: u64,
}

impl LanguageCount {
    fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.gone.iter_mut().zip(other.gone).for_each(|(sum, more)| *sum += more);
        self.samples += other.samples;
        self.named += other.named;
    }

    /// Returns the number of frames without a name.
    pub(crate) fn unnamed(&self) -> u64 {
        self.gone.iter().sum()
    }
}

/// Counts of the managed frames of a stack, or of all samples, in the order of
/// [`ManagedLanguage::ALL`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ManagedCount([LanguageCount; ManagedLanguage::ALL.len()]);

impl ManagedCount {
    /// Counts a frame.
    pub(crate) fn count(&mut self, location: ManagedLocation) {
        let count = &mut self.0[location.language as usize];
        count.frames += u64::from(location.id.is_some());
        if let Some(gone) = location.gone {
            count.gone[gone as usize] += 1;
        }
    }

    /// Counts the sample of a stack whose innermost managed frame this is.
    pub(crate) fn count_sample(&mut self, innermost: ManagedLocation) {
        let count = &mut self.0[innermost.language as usize];
        count.samples += 1;
        count.named += u64::from(innermost.gone.is_none());
    }

    /// Adds the frames of another stack, or of other samples.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| sum.add(more));
    }

    /// Returns the languages that have frames, and their counts.
    pub(crate) fn languages(&self) -> impl Iterator<Item = (ManagedLanguage, &LanguageCount)> {
        ManagedLanguage::ALL.into_iter().zip(&self.0).filter(|(_, count)| count.frames > 0)
    }

    /// Returns the figures for the metadata, each with its key.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (String, u64)> {
        self.languages().flat_map(|(language, count)| {
            let name = language.name().to_lowercase();
            let figures = [
                (format!("samples.{name}"), count.samples),
                (format!("samples_named.{name}"), count.named),
                (format!("frames.{name}"), count.frames),
            ];
            let gone = Gone::ALL.into_iter().zip(count.gone).filter(|(_, count)| *count > 0);
            let gone = gone.map(move |(gone, count)| {
                (format!("frames_unnamed.{name}.{}", gone.name()), count)
            });
            figures.into_iter().chain(gone)
        })
    }

    /// Returns the shares of samples that have a name, by language.
    pub(crate) fn shares(&self) -> Vec<NamedShare> {
        let share = |(language, count): (ManagedLanguage, &LanguageCount)| NamedShare {
            language,
            samples: count.samples,
            named: count.named,
        };
        self.languages().map(share).collect()
    }

    /// Returns the lines of the closing report: labels and texts.
    ///
    /// `all` is the number of all samples. `by_kernel` says whether the kernel takes the samples in
    /// its own code: it sees only what is on the native stack.
    pub(crate) fn lines(
        &self,
        all: u64,
        by_kernel: bool,
    ) -> impl Iterator<Item = (&'static str, String)> {
        self.languages().map(move |(language, count)| {
            let (named, samples) = (percent(count.named, count.samples), count.samples);
            let mut text = format!("{named} of {samples} samples have a name");
            let others = all.saturating_sub(samples);
            if others > 0 {
                let name = language.name();
                text.push_str(&format!("; {others} samples have no {name} function"));
                if by_kernel && !language.is_in_kernel_samples() {
                    text.push_str(" (none in the kernel has one; --engine timer shows them)");
                }
            }
            text.push_str(&format!("; {} frames", count.frames));
            if count.unnamed() > 0 {
                let reasons = Gone::ALL.into_iter().zip(count.gone);
                let reasons = reasons.filter(|(_, count)| *count > 0);
                let reasons: Vec<String> =
                    reasons.map(|(gone, count)| format!("{} {count}", gone.name())).collect();
                text.push_str(&format!(
                    ", {} of them without a name: {}",
                    count.unnamed(),
                    reasons.join(", ")
                ));
            }
            (language.name(), text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::LocationId;

    fn location(gone: Option<Gone>) -> ManagedLocation {
        ManagedLocation { language: ManagedLanguage::Python, id: Some(LocationId(1)), gone }
    }

    #[test]
    fn frames_without_a_name_are_counted_by_reason() {
        let mut one = ManagedCount::default();
        assert_eq!((one.lines(9, false).count(), one.numbers().count()), (0, 0));
        for gone in [None, Some(Gone::Freed), None] {
            one.count(location(gone));
        }
        let pseudo = ManagedLocation { id: None, ..location(None) };
        one.count(pseudo);
        one.count_sample(location(None));
        let mut sum = one.clone();
        sum.add(&one);
        sum.count_sample(location(Some(Gone::Freed)));
        let lines: Vec<_> = sum.lines(10, false).collect();
        let expected = "66.7 % of 3 samples have a name; 7 samples have no Python function; \
                        6 frames, 2 of them without a name: freed 2";
        assert_eq!(lines, [("Python", expected.to_owned())]);
        let [(_, text)] = sum.lines(10, true).collect::<Vec<_>>().try_into().unwrap();
        let hint = "no Python function (none in the kernel has one; --engine timer shows them); 6";
        assert!(text.contains(hint), "{text}");
        let mut java = ManagedCount::default();
        java.count_sample(ManagedLocation { language: ManagedLanguage::Java, ..location(None) });
        java.count(ManagedLocation { language: ManagedLanguage::Java, ..location(None) });
        let [(_, text)] = java.lines(2, true).collect::<Vec<_>>().try_into().unwrap();
        assert!(!text.contains("kernel"), "{text}");
        let share = NamedShare { language: ManagedLanguage::Python, samples: 3, named: 2 };
        assert_eq!(sum.shares(), [share]);
        let numbers: Vec<_> = sum.numbers().collect();
        let expected = [
            ("samples.python", 3),
            ("samples_named.python", 2),
            ("frames.python", 6),
            ("frames_unnamed.python.freed", 2),
        ];
        assert_eq!(numbers, expected.map(|(key, number)| (key.to_owned(), number)));
    }
}
