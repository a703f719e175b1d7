// A vault in memory, which tells its events as Obsidian does.

export class MemoryVault {
  #notes = new Map();
  #clock = 1_700_000_000_000;
  library;

  notes() {
    return [...this.#notes.keys()].map(path => this.note(path));
  }

  note(path) {
    const found = this.#notes.get(path);
    return found ? { path, modified: found.modified, size: Buffer.byteLength(found.text) } : null;
  }

  async read(path) {
    const found = this.#notes.get(path);
    if (!found) {
      throw new Error(`${path} is not in the vault`);
    }
    return found.text;
  }

  write(path, text) {
    this.#notes.set(path, { text, modified: (this.#clock += 1000) });
    this.library?.changed(path);
  }

  delete(path) {
    this.#notes.delete(path);
    this.library?.changed(path);
  }

  rename(from, to) {
    this.#notes.set(to, this.#notes.get(from));
    this.#notes.delete(from);
    this.library?.renamed(from, to);
  }
}
