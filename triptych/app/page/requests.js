// Everything the page asks the server; a failure is an Error whose message is the server's own sentence.
async function answered(response) {
  if (response.ok) return response.json();
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not one of our answers: the status must do */ }
  const error = new Error(message);
  error.status = response.status;
  error.retry = Number(response.headers.get("Retry-After")) || 0;
  throw error;
}

async function ask(address, settings = {}) {
  let response;
  try {
    response = await fetch(address, settings);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is `triptych serve` still running?");
  }
  if (response.status === 503 && !settings.again) {
    const seconds = Number(response.headers.get("Retry-After")) || 1;
    await new Promise((done) => setTimeout(done, 1000 * Math.min(seconds, 5)));
    return ask(address, { ...settings, again: true });
  }
  return response;
}

const read = async (address, settings) => answered(await ask(address, settings));

// A query with files goes as a form: the query itself as JSON in `query`, each file under the name its part has.
function body(query, parts) {
  const files = parts.filter((part) => part.file);
  if (!files.length) return { body: JSON.stringify(query), headers: { "Content-Type": "application/json" } };
  const form = new FormData();
  form.append("query", JSON.stringify(query));
  files.forEach((part, place) => form.append(`file${place}`, part.file, part.name));
  return { body: form };
}

export function wire(parts) {
  let place = 0;
  return parts.map((part) => {
    const weight = part.weight;
    if (part.kind === "text") return { text: part.text, weight };
    if (part.kind === "item") return { item: part.id, weight };
    return { file: `file${place++}`, weight };
  });
}

export const usable = (parts) => parts.filter((part) => part.kind !== "file" || part.file);

export function search(query, parts, signal) {
  return read("v1/search", { method: "POST", signal, ...body({ ...query, parts: wire(parts) }, parts) });
}

export function explain(parts, item, signal) {
  return read("v1/explain", { method: "POST", signal, ...body({ parts: wire(parts), item }, parts) });
}

export async function land(parts, signal) {
  const found = await read("v1/map", { method: "POST", signal, ...body({ parts: wire(parts) }, parts) });
  return "x" in found ? found : null; // not yet: the map is being drawn again
}

export const overview = () => read("v1/collection");
export const item = (id) => read(`v1/items/${id}`);
export const peaks = (id, count) => read(`v1/items/${id}/peaks?count=${count}`);

export async function map(column, signal) {
  for (;;) {
    const response = await ask(`v1/map${column ? `?column=${encodeURIComponent(column)}` : ""}`, { signal });
    if (response.status !== 202) return answered(response);
    await new Promise((done) => setTimeout(done, 700));
  }
}

export const address = {
  media: (id) => `v1/items/${id}/media`,
  sound: (id) => `v1/items/${id}/audio.wav`,
  thumbnail: (id, size = 512) => `v1/items/${id}/thumbnail?size=${size}`,
  spectrogram: (id, width = 512) => `v1/items/${id}/spectrogram?width=${width}`,
};
