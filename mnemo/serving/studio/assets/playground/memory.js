// One memory of the playground: a session on the server, what it is doing, and the window of its text that is shown.
import { events, getJson, postJson, request } from "../api.js";
import { count } from "../widgets.js";

export const API = "/studio/api/playground";
const SESSIONS = "/v1/sessions";
const FILE = { "Content-Type": "application/octet-stream" };
const MOST_LIVE = 200; // written tokens after which the window is loaded again
const REFRESH = 400; // milliseconds between two updates of the text while it is being read

export class Memory {
  /** `changed`: called after every change. `page`: tokens of a window. */
  constructor(label, { model, page, changed }) {
    Object.assign(this, { label, model, page, changed });
    this.info = null; // as the server describes the session; null before the first use
    this.window = null;
    this.overview = null;
    this.work = null; // {kind, tokens, total} while it reads or writes
    this.live = []; // written tokens that no window holds yet
    this.notice = null; // {kind, text}
    this.resizing = null; // a promise while the memory length changes
    this.goal = null; // number of the window to show while and after it works; null: the last one
    this.revision = 0;
    this.stopping = null;
    this.started = 0; // when the work began, in milliseconds of the page
    this.refreshed = 0;
  }

  get id() {
    return this.info?.id ?? null;
  }

  get path() {
    return `${API}/sessions/${encodeURIComponent(this.id)}`;
  }

  /** The session in the public API. */
  get session() {
    return `${SESSIONS}/${encodeURIComponent(this.id)}`;
  }

  get busy() {
    return this.work !== null;
  }

  set(change) {
    Object.assign(this, change);
    this.revision += 1;
    this.changed();
  }

  say(kind, text) {
    this.set({ notice: text ? { kind, text } : null });
  }

  /** Continue a session that the server has; false if it does not. */
  async open(id) {
    try {
      const info = await this.describe(id);
      this.set({ info, model: info.model });
    } catch (error) {
      if (error.status !== 404) throw error;
      this.say("warn", "The server no longer has this session: it was deleted, or the server keeps no sessions on disk. A new one starts with the next text.");
      return false;
    }
    if (this.info.interrupted) this.say("warn", interruption(this.info.interrupted));
    await this.show(this.lastPage());
    if (this.info.unmeasured && !this.info.busy) this.resume();
    return true;
  }

  /** Measure what an interrupted page has left. */
  async resume() {
    const { notice } = this;
    await this.run("measure", () => {
      this.set({ notice });
      return this.measure();
    });
  }

  /** Create the session when it is first needed. */
  async ensure() {
    if (this.id) return;
    const made = await postJson(SESSIONS, { model: this.model, name: "playground", memory_length: this.length });
    this.set({ info: await this.describe(made.id) });
  }

  describe(id) {
    return getJson(`${API}/sessions/${encodeURIComponent(id)}`);
  }

  lastPage() {
    return Math.floor(Math.max(0, (this.info?.shown ?? 0) - 1) / this.page);
  }

  /** Load the window with this number. */
  async show(number) {
    if (!this.id) return;
    const begin = Math.max(0, Math.min(number, this.lastPage())) * this.page;
    const query = `begin=${begin}&end=${begin + this.page}`;
    const asked = this.id;
    const [window, overview] = await Promise.all([getJson(`${this.path}/tokens?${query}`), getJson(`${this.path}/overview`)]);
    if (asked === this.id) this.set({ window, overview });
  }

  async refresh() {
    if (!this.id) return;
    const before = this.info;
    const info = await getJson(this.path);
    if (before?.id !== this.id) return;
    this.set({ info });
  }

  /**
   * Do some work with the session; only one at a time. Errors become notices, and whatever was done before them stays.
   */
  async run(kind, action) {
    if (this.busy) return;
    this.stopping = new AbortController();
    this.started = performance.now();
    this.set({ work: { kind, tokens: 0, total: null }, notice: null, goal: null });
    let notice = null;
    let refused = false;
    try {
      await this.resizing;
      await this.ensure();
      await action();
      notice = this.notice;
    } catch (error) {
      refused = error.status !== undefined;
      notice = error.name === "AbortError" ? { kind: "info", text: stopped(this.work) } : { kind: "bad", text: words(error) };
    }
    await this.settle(!refused).catch((error) => {
      notice ??= { kind: "bad", text: words(error) };
    });
    this.set({ work: null, live: [], stopping: null, notice });
  }

  /** One request that streams events; throws if it fails, breaks off or is stopped. */
  async stream(path, options, onEvent) {
    for await (const { data } of events(path, { method: "POST", ...options, signal: this.stopping.signal })) {
      if (data === "[DONE]") return;
      const said = JSON.parse(data);
      if (said.error) throw new Error(said.error.message);
      await onEvent(said);
    }
    throw new Error("The connection to the server broke off. What was done until then is kept.");
  }

  stop() {
    this.stopping?.abort();
  }

  /** Show the result; unless the work was refused, wait until the server has ended it. */
  async settle(wait) {
    if (!this.id) return;
    for (let tries = 0; tries < (wait ? 60 : 1); tries += 1) {
      await this.refresh();
      if (!this.info.busy) break;
      await new Promise((done) => setTimeout(done, 150));
    }
    await this.show(this.goal ?? this.lastPage());
  }

  /** Read a text, then again without memory. */
  async read(body, name) {
    await this.run("read", async () => {
      // The window stays where the new text begins: there one starts to read along.
      this.goal = Math.floor(this.info.shown / this.page);
      await this.stream(`${this.path}/read?name=${encodeURIComponent(name)}`, { body, headers: FILE }, async ({ type, tokens, total, shown }) => {
        if (type !== "progress") return;
        this.info.shown = shown;
        await this.progress({ kind: "read", tokens, total });
      });
      await this.refresh();
      await this.measure();
    });
  }

  /** Losses without memory for all tokens that have none yet. */
  async measure() {
    await this.stream(`${this.path}/measure`, {}, async ({ type, tokens, total }) => {
      if (type === "progress") await this.progress({ kind: "measure", tokens, total });
    });
  }

  /** Show how far the work is, and its text now and then. */
  async progress(work) {
    this.set({ work });
    const now = performance.now();
    if (now - this.refreshed < REFRESH) return;
    this.refreshed = now;
    await this.show(this.goal ?? this.lastPage());
  }

  /** Read a long text without showing it: the public route takes texts of any length. */
  async readHidden(body, name) {
    await this.run("hidden", async () => {
      await this.stream(`${this.session}/read?stream=true`, { body, headers: FILE }, (said) => {
        if (said.object !== "session.progress") return;
        const { tokens, bytes, total_bytes } = said;
        this.set({ work: { kind: "hidden", tokens, bytes, total_bytes } });
      });
      await this.refresh();
      this.say("good", `${name} was read without showing it. The memory now holds ${count.format(this.info.tokens)} tokens.`);
    });
  }

  async write(settings) {
    await this.run("write", async () => {
      await this.show(this.lastPage());
      const options = { body: JSON.stringify(settings), headers: { "Content-Type": "application/json" } };
      await this.stream(`${this.path}/write`, options, (said) => {
        if (said.type !== "token") return;
        this.live.push(said);
        this.set({ work: { kind: "write", tokens: this.work.tokens + 1, total: settings.tokens } });
        if (this.live.length % MOST_LIVE === 0) this.renew(said.at);
      });
      await this.refresh();
      this.live = [];
      await this.measure();
    });
  }

  /** Let the window hold the tokens up to here, so that only few are drawn again with every new one. */
  async renew(last) {
    this.info.shown = last + 1;
    await this.show(this.lastPage()).catch(() => {}); // the next time, or at the end
    this.set({ live: this.live.filter((token) => token.at >= this.window.end) });
  }

  /** Change the number of slots of the long-range layers; of quick changes only the last one counts. */
  async resize(length) {
    this.length = length;
    this.changed();
    if (!this.id || this.resizing) return;
    this.resizing = this.guarded(() => this.sendLength());
    await this.resizing;
    this.set({ resizing: null });
  }

  async sendLength() {
    let sent;
    do {
      sent = this.length;
      const body = JSON.stringify({ memory_length: sent });
      await request(this.session, { method: "PATCH", body, headers: { "Content-Type": "application/json" } });
      await this.refresh();
    } while (sent !== this.length);
    this.say(null, null);
  }

  /** The file of the memory: {name, blob}. */
  async file() {
    const answer = await request(`${this.session}/memory`);
    return { name: `${this.model}-${this.info.tokens}.memory`, blob: await answer.blob() };
  }

  async load(file) {
    return this.guarded(async () => {
      const path = `${SESSIONS}?model=${encodeURIComponent(this.model)}&name=playground`;
      const answer = await request(path, { method: "POST", body: file, headers: FILE });
      const before = this.id;
      const { id } = await answer.json();
      this.set({ info: await this.describe(id), window: null, overview: null, notice: null });
      if (before) this.drop(before);
      this.say("good", `Loaded ${file.name}: the memory of ${count.format(this.info.tokens)} tokens. A memory file holds no text, so only new text is shown.`);
    });
  }

  async forkInto(other) {
    return this.guarded(async () => {
      await this.ensure();
      const info = await postJson(`${this.path}/fork`, {});
      other.set({ info, model: info.model });
      await other.show(other.lastPage());
    });
  }

  /** Forget everything; the session is deleted. */
  async forget() {
    const before = this.id;
    this.set({ info: null, window: null, overview: null, live: [], notice: null, length: null });
    if (before) await this.drop(before);
  }

  async drop(id) {
    await request(`${SESSIONS}/${encodeURIComponent(id)}`, { method: "DELETE" }).catch(() => {});
  }

  async guarded(action) {
    try {
      await action();
      return true;
    } catch (error) {
      if (error.name !== "AbortError") this.say("bad", words(error));
      return false;
    }
  }
}

function stopped({ kind, tokens, total }) {
  if (kind === "hidden") return "Reading stopped. Nothing of this text is kept; the memory is as it was before.";
  if (kind === "measure") return "Stopped before everything was measured without memory. Nothing else is affected.";
  const of = total ? ` of ${count.format(total)}` : "";
  return `${kind === "write" ? "Writing" : "Reading"} stopped after ${count.format(tokens)}${of} tokens. The memory holds everything up to there.`;
}

function words(error) {
  const busy = error.status === 409 && error.message.includes("busy");
  return busy ? "Another tab or program is using this session at the moment. Try again when it has finished; nothing was changed." : error.message;
}

export function interruption({ kind, name, tokens, total }) {
  const what = kind === "write" ? "Writing" : `Reading ${name || "the text"}`;
  const of = total ? ` of ${count.format(total)}` : "";
  return `${what} stopped when its page was closed, after ${count.format(tokens)}${of} tokens. The memory holds everything up to there.`;
}
