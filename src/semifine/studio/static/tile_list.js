// The tiles of a grid: their number, and the pages of them that were needed so far.

const PAGE = 200;

export class TileList {
  total = 0;
  model = null; // the version of the live model that sorted the tiles
  #tiles = []; // with holes where a page is missing
  #requests = new Map(); // from the offset of a request to its AbortController
  #position = null; // from ids to indices, built on demand

  /**
   * @param fetchPage Fetches {total, model, tiles} for (offset, count, signal).
   * @param visible Returns the range of the tiles in view.
   * @param onChange Is called after tiles have arrived.
   * @param onError Is called with the error of a request.
   */
  constructor(fetchPage, visible, onChange, onError) {
    this.fetchPage = fetchPage;
    this.visible = visible;
    this.onChange = onChange;
    this.onError = onError;
  }

  at(index) {
    return this.#tiles[index];
  }

  /** Loads the tiles from `first` to `last` again. The old ones stay until the new ones are here. */
  async reload(first = 0, last = PAGE) {
    const offset = Math.max(0, first);
    const page = await this.#request(offset, Math.max(PAGE, last - offset), true);
    if (!page) return; // a newer request has replaced it
    this.#tiles = [];
    this.#add(offset, page);
    if (!page.tiles.length && page.total > 0 && offset > 0) await this.reload(); // the list is shorter now
  }

  /** Makes sure that the tiles from `first` to `last` are here or on their way; cancels requests far from them. */
  async need(first, last) {
    for (const [offset, controller] of this.#requests)
      if (offset + PAGE < first - PAGE || offset > last + PAGE) {
        controller.abort();
        this.#requests.delete(offset);
      }
    const missing = [];
    const end = Math.min(last, this.total);
    for (let index = first; index < end; index++) {
      if (this.#tiles[index]) continue;
      const pageEnd = Math.min((Math.floor(index / PAGE) + 1) * PAGE, this.total);
      missing.push([index, pageEnd - index]);
      index = pageEnd - 1;
    }
    await Promise.all(missing.map(async ([offset, count]) => {
      if (this.#requests.has(offset)) return;
      const page = await this.#request(offset, count);
      if (!page) return;
      if ((page.model ?? null) !== this.model) this.#keepOnly(...this.visible());
      this.#add(offset, page, count);
    }));
  }

  async #request(offset, count, replacesAll = false) {
    if (replacesAll) this.#cancel();
    const controller = new AbortController();
    this.#requests.set(offset, controller);
    try {
      const page = await this.fetchPage(offset, count, controller.signal);
      return controller.signal.aborted ? null : page;
    } catch (error) {
      if (!controller.signal.aborted) this.onError(error);
      return null;
    } finally {
      if (this.#requests.get(offset) === controller) this.#requests.delete(offset);
    }
  }

  #cancel() {
    for (const controller of this.#requests.values()) controller.abort();
    this.#requests.clear();
  }

  #add(offset, { total, model = null, tiles }, expected = 0) {
    this.model = model;
    this.total = tiles.length < expected && total > offset + tiles.length ? offset + tiles.length : total;
    this.#tiles.length = Math.min(this.#tiles.length, this.total);
    tiles.forEach((tile, index) => (this.#tiles[offset + index] = tile));
    this.#position = null;
    this.onChange();
  }

  /** Forgets the tiles outside of a range, because a new model sorts them differently. */
  #keepOnly(first, last) {
    this.#cancel();
    const kept = this.#tiles.slice(first, last);
    this.#tiles = [];
    kept.forEach((tile, index) => (this.#tiles[first + index] = tile));
    this.#position = null;
  }

  /** The index of a tile that is here, else -1. */
  indexOf(id) {
    this.#position ??= new Map(Object.entries(this.#tiles).map(([index, tile]) => [tile.id, Number(index)]));
    return this.#position.get(id) ?? -1;
  }

  get(id) {
    return this.#tiles[this.indexOf(id)];
  }

  /** Removes tiles; the tiles behind them move up. */
  remove(ids) {
    this.#cancel(); // their offsets no longer hold
    const removed = new Set(ids);
    const before = this.#tiles.length;
    const kept = [];
    let gap = 0;
    for (let index = 0; index < before; index++) {
      const tile = this.#tiles[index];
      if (tile && removed.has(tile.id)) gap++;
      else if (tile) kept[index - gap] = tile;
    }
    this.#tiles = kept;
    this.total -= gap;
    this.#position = null;
  }

  update(id, changes) {
    const tile = this.get(id);
    if (tile) Object.assign(tile, changes);
    return Boolean(tile);
  }
}
