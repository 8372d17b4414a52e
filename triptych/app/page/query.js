// The state of the page. The URL contains the complete state: query parts in order, each followed by its weight, modalities, filters.
export const state = { parts: [], modalities: [], filters: [], view: "grid", tab: "search", explain: null, k: 24, colour: "" };

const PART_TYPES = new Set(["text", "item", "file"]);
const FILTERS = new Set(["folder", "min_duration", "max_duration", "since", "until"]);
export const COLUMN_PREFIX = "column.";

export function parseUrl(queryString) {
  const parsed = { parts: [], modalities: [], filters: [], view: "grid", tab: "search", explain: null, k: 24, colour: "" };
  for (const [name, value] of new URLSearchParams(queryString)) {
    if (PART_TYPES.has(name) && value) parsed.parts.push({ type: name, weight: 1, ...partFields(name, value) });
    else if (name === "weight" && parsed.parts.length && Number.isFinite(Number(value))) parsed.parts.at(-1).weight = clampWeight(Number(value));
    else if (name === "modality") parsed.modalities.push(value);
    else if ((FILTERS.has(name) || name.startsWith(COLUMN_PREFIX)) && value) parsed.filters.push({ name, value });
    else if (name === "view" && value === "list") parsed.view = "list";
    else if (name === "tab" && value === "map") parsed.tab = "map";
    else if (name === "explain" && value) parsed.explain = value;
    else if (name === "colour") parsed.colour = value;
    else if (name === "k" && Number(value) > 0) parsed.k = Math.min(200, Math.round(Number(value)));
  }
  // The URL contains only the names of files. Reuse the files that this page has already loaded.
  for (const part of parsed.parts) {
    if (part.type === "file") part.file = state.parts.find((old) => old.type === "file" && old.name === part.name)?.file;
  }
  return parsed;
}

function partFields(type, value) {
  if (type === "text") return { text: value };
  return type === "item" ? { id: value } : { name: value };
}

// The filter of a search request: folder, min_duration, max_duration, since, until, and columns by name.
export function makeFilter(filters) {
  const filter = { columns: {} };
  for (const { name, value } of filters) {
    if (name.startsWith(COLUMN_PREFIX)) filter.columns[name.slice(COLUMN_PREFIX.length)] = value;
    else filter[name] = name === "min_duration" || name === "max_duration" ? Number(value) : value;
  }
  return filter;
}

export function clampWeight(weight) {
  return Math.max(-2, Math.min(2, Math.round(weight * 10) / 10)) || 0.1;
}

export function formatUrl(query) {
  const parameters = new URLSearchParams();
  for (const part of query.parts) {
    parameters.append(part.type, part.text ?? part.id ?? part.name);
    if (part.weight !== 1) parameters.append("weight", part.weight);
  }
  for (const modality of query.modalities) parameters.append("modality", modality);
  for (const { name, value } of query.filters) parameters.append(name, value);
  if (query.view !== "grid") parameters.set("view", query.view);
  if (query.tab !== "search") parameters.set("tab", query.tab);
  if (query.colour) parameters.set("colour", query.colour);
  if (query.k !== 24) parameters.set("k", query.k);
  if (query.explain) parameters.set("explain", query.explain);
  const text = parameters.toString();
  return text ? `?${text}` : location.pathname;
}

export const isEmpty = () => state.parts.length === 0;
