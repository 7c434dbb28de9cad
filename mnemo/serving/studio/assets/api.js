// Requests to this server. A server with an API key answers 401; the key is then asked for once and kept for this tab.

const KEY = "mnemo-key";

function headers(extra = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...extra, Authorization: `Bearer ${key}` } : extra;
}

/** fetch with the API key; throws an Error with the server's own message if the answer is not a success. */
export async function request(path, options = {}) {
  const send = () => fetch(path, { ...options, headers: headers(options.headers) });
  let answer = await unreachable(send);
  if (answer.status === 401) {
    const key = window.prompt("This server needs its API key:");
    if (key) {
      sessionStorage.setItem(KEY, key.trim());
      answer = await unreachable(send);
    }
  }
  if (answer.ok) return answer;
  throw Object.assign(new Error(await message(answer)), { status: answer.status });
}

async function unreachable(send) {
  try {
    return await send();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is mnemo studio still running?");
  }
}

/** The message of an answer in OpenAI's shape, {"error": {"message": ...}}. */
async function message(answer) {
  try {
    const said = await answer.json();
    return said.error.message;
  } catch {
    return `The server answered ${answer.status} ${answer.statusText}`;
  }
}

export async function getJson(path, options) {
  return (await request(path, options)).json();
}

export async function postJson(path, body, options = {}) {
  const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return (await request(path, { ...sent, ...options })).json();
}

/**
 * Server-sent events of an answer, as {event, data} with data still a string.
 * fetch instead of EventSource, because EventSource can send neither a key nor a body.
 */
export async function* events(path, options) {
  const answer = await request(path, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (waiting + value.replaceAll("\r\n", "\n")).split("\n\n");
      waiting = blocks.pop();
      for (const block of blocks) {
        const found = parseEvent(block);
        if (found) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseEvent(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: data.join("\n") } : null; // comments keep the connection alive
}
