// All requests to the server. A failed request throws an Error with the server's message.
async function parseResponse(response) {
  if (response.ok) return response.json();
  let message = `the server returned status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not an error response of this server */ }
  const error = new Error(message);
  error.status = response.status;
  error.retryAfter = Number(response.headers.get("Retry-After")) || 0;
  throw error;
}

async function send(url, options = {}) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is `triptych serve` still running?");
  }
  if (response.status === 503 && !options.isRetry) {
    const seconds = Number(response.headers.get("Retry-After")) || 1;
    await new Promise((resolve) => setTimeout(resolve, 1000 * Math.min(seconds, 5)));
    return send(url, { ...options, isRetry: true });
  }
  return response;
}

const fetchJson = async (url, options) => parseResponse(await send(url, options));

// A query with files is sent as a form: the query as JSON in `query`, and each file in the form field that the query part names.
function makeBody(query, parts) {
  const fileParts = parts.filter((part) => part.file);
  if (!fileParts.length) return { body: JSON.stringify(query), headers: { "Content-Type": "application/json" } };
  const form = new FormData();
  form.append("query", JSON.stringify(query));
  fileParts.forEach((part, index) => form.append(`file${index}`, part.file, part.name));
  return { body: form };
}

export function serializeParts(parts) {
  let fileIndex = 0;
  return parts.map((part) => {
    const weight = part.weight;
    if (part.type === "text") return { text: part.text, weight };
    if (part.type === "item") return { item: part.id, weight };
    return { file: `file${fileIndex++}`, weight };
  });
}

export const usableParts = (parts) => parts.filter((part) => part.type !== "file" || part.file);

export function search(query, parts, signal) {
  return fetchJson("v1/search", { method: "POST", signal, ...makeBody({ ...query, parts: serializeParts(parts) }, parts) });
}

export function explain(parts, item, signal) {
  return fetchJson("v1/explain", { method: "POST", signal, ...makeBody({ parts: serializeParts(parts), item }, parts) });
}

export async function locateQuery(parts, signal) {
  const position = await fetchJson("v1/map", { method: "POST", signal, ...makeBody({ parts: serializeParts(parts) }, parts) });
  return "x" in position ? position : null; // null: the server is still computing the map
}

export const fetchCollection = () => fetchJson("v1/collection");
export const fetchItem = (id) => fetchJson(`v1/items/${id}`);
export const fetchPeaks = (id, count) => fetchJson(`v1/items/${id}/peaks?count=${count}`);

export async function fetchMap(column, signal) {
  for (;;) {
    const response = await send(`v1/map${column ? `?column=${encodeURIComponent(column)}` : ""}`, { signal });
    if (response.status !== 202) return parseResponse(response);
    await new Promise((resolve) => setTimeout(resolve, 700));
  }
}

export const urls = {
  media: (id) => `v1/items/${id}/media`,
  audio: (id) => `v1/items/${id}/audio.wav`,
  thumbnail: (id, size = 512) => `v1/items/${id}/thumbnail?size=${size}`,
  spectrogram: (id, width = 512) => `v1/items/${id}/spectrogram?width=${width}`,
};
