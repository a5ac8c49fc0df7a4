// Entries that are made anew.
import { spinInner } from './work';

export type Entry = { name: string; value: number };

enum Mode { Fast, Slow }

export class Store {
  private entries: Entry[] = [];

  constructor(private readonly label: string, private mode: Mode = Mode.Slow) {}

  // Takes time by itself, and calls what does.
  collectEntries(count: number): Entry[] {
    this.entries = [];
    for (let index = 0; index < count; index++) {
      this.entries.push(this.makeEntry(index)); // in collectEntries
    }
    return this.entries;
  }

  private makeEntry(index: number): Entry {
    const rounds: number = this.mode === Mode.Fast ? 1 : 2_000;
    const value = spinInner(rounds + index); // in makeEntry
    return { name: `${this.label} ${index}`, value };
  }
}
