// Chips for the parts of the query, the modalities and the filters.
import { MODALITY_LABELS, byId, icon, make, replaceContent } from "./elements.js";
import { COLUMN_PREFIX, clampWeight, state } from "./query.js";
import { urls, fetchItem } from "./requests.js";

const labels = new Map(); // item id -> label and modality

export function renderPartChips(onChange) {
  // The text in the search box is also a part of the query, but has no chip.
  const visibleParts = state.parts.filter((part) => !part.inBox);
  replaceContent(byId("parts"), visibleParts.map((part) => makePartChip(part, onChange)));
}

function makePartChip(part, onChange) {
  const label = make("span", { class: "label" }, name(part));
  const isNegative = part.weight < 0;
  const weight = make("span", { class: "weight" }, Math.abs(part.weight).toFixed(1));
  const isMissing = part.type === "file" && !part.file;
  const chip = make(
    "li", { class: `chip${isNegative ? " negative" : ""}${isMissing ? " missing" : ""}`, data: { type: part.type } },
    labels.get(part.id)?.modality === "image" && thumbnail(part.id),
    make("button", {
      type: "button", class: "sign", "aria-pressed": String(isNegative), title: isNegative ? "Negative: click to make it positive" : "Positive: click to make it negative",
      "aria-label": `${name(part)}: ${isNegative ? "negative" : "positive"}`, onclick: () => { part.weight = clampWeight(-part.weight); onChange(); },
    }, isNegative ? "−" : "+"),
    label,
    isMissing && make("span", { class: "weight" }, "choose this file again"),
    make("input", {
      type: "range", min: "0.1", max: "2", step: "0.1", value: String(Math.abs(part.weight)), "aria-label": `Weight of ${name(part)}`,
      oninput: (event) => { weight.textContent = Number(event.target.value).toFixed(1); },
      onchange: (event) => { part.weight = clampWeight(Number(event.target.value) * (part.weight < 0 ? -1 : 1)); onChange(); },
    }),
    weight,
    make("button", {
      type: "button", "aria-label": `Remove ${name(part)}`, title: "Remove",
      onclick: () => { state.parts = state.parts.filter((other) => other !== part); onChange(); byId("text").focus(); },
    }, "×"),
  );
  if (part.type === "item" && !labels.has(part.id)) {
    fetchItem(part.id).then((itemInfo) => {
      cacheLabel(itemInfo);
      label.textContent = name(part);
      if (itemInfo.modality === "image") chip.prepend(thumbnail(part.id));
    }).catch(() => { label.textContent = "deleted item"; });
  }
  return chip;
}

const thumbnail = (id) => make("img", { src: urls.thumbnail(id, 64), alt: "" });
const name = (part) => part.text ?? part.name ?? labels.get(part.id)?.label ?? part.id;
export const cacheLabel = (itemInfo) => labels.set(itemInfo.id, { label: itemInfo.modality === "text" ? itemInfo.text : itemInfo.name, modality: itemInfo.modality });

export function renderModalityChips(collection, onChange) {
  replaceContent(byId("modalities"), Object.entries(collection.modalities).map(([modality, count]) => make(
    "button", {
      type: "button", class: `modality of-${modality}`, "aria-pressed": String(state.modalities.includes(modality)),
      onclick: () => {
        state.modalities = state.modalities.includes(modality) ? state.modalities.filter((other) => other !== modality) : [...state.modalities, modality];
        onChange();
      },
    }, icon(modality, 16), MODALITY_LABELS[modality], make("span", { class: "count" }, count.toLocaleString("en")),
  )));
}

const FILTER_LABELS = { folder: "folder", min_duration: "min. seconds", max_duration: "max. seconds", since: "since", until: "until" };

export function renderFilterChips(onChange) {
  replaceContent(byId("filters"), state.filters.map((filter) => make(
    "li", { class: "chip" },
    make("span", { class: "label" }, `${FILTER_LABELS[filter.name] ?? filter.name.slice(COLUMN_PREFIX.length)}: ${filter.value}`),
    make("button", {
      type: "button", "aria-label": `Remove the filter ${filter.name} ${filter.value}`,
      onclick: () => { state.filters = state.filters.filter((other) => other !== filter); onChange(); },
    }, "×"),
  )), summary());
}

const summary = () => byId("filter-menu").querySelector("summary");

// Close the filter menu. If the focus is inside the menu, move the focus to the menu's button.
export function closeMenu() {
  const menu = byId("filter-menu");
  if (!menu.open) return false;
  const inside = menu.contains(document.activeElement);
  menu.open = false;
  if (inside) summary().focus();
  return true;
}

export function renderFilterMenu(collection, onChange) {
  const set = (name, value) => {
    if (!value) return;
    state.filters = [...state.filters.filter((filter) => filter.name !== name), { name, value: String(value) }];
    closeMenu();
    onChange();
  };
  const field = (label, control) => make("label", {}, label, control);
  const choice = (name, values) => make(
    "select", { onchange: (event) => set(name, event.target.value) },
    make("option", { value: "" }, "any"), ...values.map((value) => make("option", { value }, value)),
  );
  const input = (name, modality) => make("input", {
    type: modality, min: modality === "number" ? "0" : undefined, step: modality === "number" ? "any" : undefined,
    onchange: (event) => set(name, event.target.value),
  });
  const controls = [];
  if (collection.folders.length > 1) controls.push(field("folder", choice("folder", collection.folders)));
  for (const [column, values] of Object.entries(collection.columns)) {
    controls.push(field(column, choice(COLUMN_PREFIX + column, values)));
  }
  if (collection.modalities.audio) {
    controls.push(make("div", { class: "two" }, field("min. seconds", input("min_duration", "number")), field("max. seconds", input("max_duration", "number"))));
  }
  controls.push(make("div", { class: "two" }, field("modified since", input("since", "date")), field("modified until", input("until", "date"))));
  byId("filter-controls").replaceChildren(...controls);
  addEventListener("pointerdown", (event) => { if (!byId("filter-menu").contains(event.target)) closeMenu(); });
}
