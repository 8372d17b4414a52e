// The query, whole, in the address: parts in order (text, item, file), each with its weight after it; kinds; filters.
export const state = { parts: [], modalities: [], filters: [], view: "grid", tab: "search", why: null, k: 24, colour: "" };

const PARTS = new Set(["text", "item", "file"]);
const FILTERS = new Set(["folder", "min_duration", "max_duration", "since", "until"]);
export const COLUMN = "column.";

export function read(address) {
  const fresh = { parts: [], modalities: [], filters: [], view: "grid", tab: "search", why: null, k: 24, colour: "" };
  for (const [name, value] of new URLSearchParams(address)) {
    if (PARTS.has(name) && value) fresh.parts.push({ kind: name, weight: 1, ...named(name, value) });
    else if (name === "weight" && fresh.parts.length && Number.isFinite(Number(value))) fresh.parts.at(-1).weight = clamp(Number(value));
    else if (name === "modality") fresh.modalities.push(value);
    else if ((FILTERS.has(name) || name.startsWith(COLUMN)) && value) fresh.filters.push({ name, value });
    else if (name === "view" && value === "list") fresh.view = "list";
    else if (name === "tab" && value === "map") fresh.tab = "map";
    else if (name === "why" && value) fresh.why = value;
    else if (name === "colour") fresh.colour = value;
    else if (name === "k" && Number(value) > 0) fresh.k = Math.min(200, Math.round(Number(value)));
  }
  // A file itself cannot be in an address: of one that is still known here, the bytes are kept.
  for (const part of fresh.parts) {
    if (part.kind === "file") part.file = state.parts.find((old) => old.kind === "file" && old.name === part.name)?.file;
  }
  return fresh;
}

function named(kind, value) {
  if (kind === "text") return { text: value };
  return kind === "item" ? { id: value } : { name: value };
}

// As the server takes them: folder, min_duration, max_duration, since, until, and columns by name.
export function conditions(filters) {
  const found = { columns: {} };
  for (const { name, value } of filters) {
    if (name.startsWith(COLUMN)) found.columns[name.slice(COLUMN.length)] = value;
    else found[name] = name === "min_duration" || name === "max_duration" ? Number(value) : value;
  }
  return found;
}

export function clamp(weight) {
  return Math.max(-2, Math.min(2, Math.round(weight * 10) / 10)) || 0.1;
}

export function write(query) {
  const found = new URLSearchParams();
  for (const part of query.parts) {
    found.append(part.kind, part.text ?? part.id ?? part.name);
    if (part.weight !== 1) found.append("weight", part.weight);
  }
  for (const kind of query.modalities) found.append("modality", kind);
  for (const { name, value } of query.filters) found.append(name, value);
  if (query.view !== "grid") found.set("view", query.view);
  if (query.tab !== "search") found.set("tab", query.tab);
  if (query.colour) found.set("colour", query.colour);
  if (query.k !== 24) found.set("k", query.k);
  if (query.why) found.set("why", query.why);
  const text = found.toString();
  return text ? `?${text}` : location.pathname;
}

export const isEmpty = () => state.parts.length === 0;
