// The query's parts, the kinds and the filters as chips that can be changed and removed.
import { NAMES, byId, icon, make, refill } from "./elements.js";
import { COLUMN, clamp, state } from "./query.js";
import { address, item } from "./requests.js";

const labels = new Map(); // what an item is called and is, once known

export function partChips(changed) {
  // The words in the box are a part as well; they are in the box and need no chip.
  const shown = state.parts.filter((part) => !part.boxed);
  refill(byId("parts"), shown.map((part) => partChip(part, changed)));
}

function partChip(part, changed) {
  const label = make("span", { class: "label" }, name(part));
  const minus = part.weight < 0;
  const weight = make("span", { class: "weight" }, Math.abs(part.weight).toFixed(1));
  const lost = part.kind === "file" && !part.file;
  const chip = make(
    "li", { class: `chip${minus ? " minus" : ""}${lost ? " lost" : ""}`, data: { kind: part.kind } },
    labels.get(part.id)?.modality === "image" && thumbnail(part.id),
    make("button", {
      type: "button", class: "sign", "aria-pressed": String(minus), title: minus ? "Not wanted; make it wanted" : "Wanted; make it minus",
      "aria-label": `${name(part)}: ${minus ? "not wanted" : "wanted"}`, onclick: () => { part.weight = clamp(-part.weight); changed(); },
    }, minus ? "−" : "+"),
    label,
    lost && make("span", { class: "weight" }, "drop it again"),
    make("input", {
      type: "range", min: "0.1", max: "2", step: "0.1", value: String(Math.abs(part.weight)), "aria-label": `Weight of ${name(part)}`,
      oninput: (event) => { weight.textContent = Number(event.target.value).toFixed(1); },
      onchange: (event) => { part.weight = clamp(Number(event.target.value) * (part.weight < 0 ? -1 : 1)); changed(); },
    }),
    weight,
    make("button", {
      type: "button", "aria-label": `Remove ${name(part)}`, title: "Remove",
      onclick: () => { state.parts = state.parts.filter((other) => other !== part); changed(); byId("text").focus(); },
    }, "×"),
  );
  if (part.kind === "item" && !labels.has(part.id)) {
    item(part.id).then((found) => {
      remember(found);
      label.textContent = name(part);
      if (found.modality === "image") chip.prepend(thumbnail(part.id));
    }).catch(() => { label.textContent = "an item that is not here any more"; });
  }
  return chip;
}

const thumbnail = (id) => make("img", { src: address.thumbnail(id, 64), alt: "" });
const name = (part) => part.text ?? part.name ?? labels.get(part.id)?.label ?? part.id;
export const remember = (found) => labels.set(found.id, { label: found.modality === "text" ? found.text : found.name, modality: found.modality });

export function kindChips(overview, changed) {
  refill(byId("kinds"), Object.entries(overview.modalities).map(([kind, count]) => make(
    "button", {
      type: "button", class: `kind of-${kind}`, "aria-pressed": String(state.modalities.includes(kind)),
      onclick: () => {
        state.modalities = state.modalities.includes(kind) ? state.modalities.filter((other) => other !== kind) : [...state.modalities, kind];
        changed();
      },
    }, icon(kind, 16), NAMES[kind], make("span", { class: "count" }, count.toLocaleString("en")),
  )));
}

const SAID = { folder: "in", min_duration: "at least (s)", max_duration: "at most (s)", since: "since", until: "until" };

export function filterChips(changed) {
  refill(byId("filters"), state.filters.map((filter) => make(
    "li", { class: "chip" },
    make("span", { class: "label" }, `${SAID[filter.name] ?? filter.name.slice(COLUMN.length)}: ${filter.value}`),
    make("button", {
      type: "button", "aria-label": `Remove the filter ${filter.name} ${filter.value}`,
      onclick: () => { state.filters = state.filters.filter((other) => other !== filter); changed(); },
    }, "×"),
  )), summary());
}

const summary = () => byId("more").querySelector("summary");

// Close the menu of filters; the focus that was inside it goes back to the button that opened it.
export function closeMenu() {
  const menu = byId("more");
  if (!menu.open) return false;
  const inside = menu.contains(document.activeElement);
  menu.open = false;
  if (inside) summary().focus();
  return true;
}

export function filterMenu(overview, changed) {
  const set = (name, value) => {
    if (!value) return;
    state.filters = [...state.filters.filter((filter) => filter.name !== name), { name, value: String(value) }];
    closeMenu();
    changed();
  };
  const field = (label, control) => make("label", {}, label, control);
  const choice = (name, values) => make(
    "select", { onchange: (event) => set(name, event.target.value) },
    make("option", { value: "" }, "any"), ...values.map((value) => make("option", { value }, value)),
  );
  const input = (name, kind) => make("input", {
    type: kind, min: kind === "number" ? "0" : undefined, step: kind === "number" ? "any" : undefined,
    onchange: (event) => set(name, event.target.value),
  });
  const controls = [];
  if (overview.folders.length > 1) controls.push(field("folder", choice("folder", overview.folders)));
  for (const [column, values] of Object.entries(overview.columns)) {
    controls.push(field(column, choice(COLUMN + column, values)));
  }
  if (overview.modalities.audio) {
    controls.push(make("div", { class: "two" }, field("at least, seconds", input("min_duration", "number")), field("at most, seconds", input("max_duration", "number"))));
  }
  controls.push(make("div", { class: "two" }, field("changed since", input("since", "date")), field("changed until", input("until", "date"))));
  byId("menu").replaceChildren(...controls);
  addEventListener("pointerdown", (event) => { if (!byId("more").contains(event.target)) closeMenu(); });
}
