// Functions that compute.
type Weights = Record<string, number>;

const known: Weights = { 'größe 😀': 1 };

export function spinInner(rounds: number): number {
  let sum: number = 0;
  for (let round = 0; round < rounds; round++) {
    sum += Math.sqrt(sum + round); // in spinInner
  }
  return sum;
}

/** Calls another function of this file, from a function expression. */
export const weigh = function (value: number, rounds: number): number {
  const base: number = known['größe 😀'] ?? 0;
  return base + value + spinInner(rounds); // in weigh
};
