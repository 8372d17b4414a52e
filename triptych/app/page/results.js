// Hits as cards or rows, most relevant first; the relevance line; empty and error states.
import { MODALITY_NAMES, byId, formatTime, icon, make } from "./elements.js";
import { cacheLabel } from "./chips.js";
import { urls } from "./requests.js";
import { makeAudioStrip } from "./audio.js";

const container = byId("results");

export function renderHits(answer, actions) {
  const cards = [];
  let hasLine = false;
  for (const hit of answer.hits) {
    const isIrrelevant = hit.relevance < answer.relevance_threshold;
    if (isIrrelevant && !hasLine) {
      hasLine = true;
      cards.push(make("p", { class: "relevance-line", role: "separator" }, cards.length ? "hits below are probably not relevant" : "these are the most similar items, but they are probably not relevant"));
    }
    cards.push(makeCard(hit, isIrrelevant, actions));
  }
  container.replaceChildren(...cards);
  const first = container.querySelector(".hit");
  if (first) first.tabIndex = 0;
}

function makeCard(hit, isIrrelevant, actions) {
  const label = hit.modality === "text" ? hit.text : hit.name;
  cacheLabel(hit);
  const percent = Math.round(100 * hit.relevance);
  const partScores = hit.part_scores.length > 1 ? ` (${hit.part_scores.map((score) => score.toFixed(3)).join(", ")})` : "";
  const description = `relevance ${percent} %, score ${hit.score.toFixed(3)}${partScores}`;
  const element = make(
    "article", { class: `hit${isIrrelevant ? " irrelevant" : ""}`, tabindex: "-1", data: { id: hit.id, modality: hit.modality }, "aria-label": `${MODALITY_NAMES[hit.modality]} ${label.slice(0, 120)}, relevance ${percent} %` },
    makePreview(hit),
    make(
      "div", { class: "body" },
      hit.modality !== "text" && make("p", { class: `name of-${hit.modality}`, title: hit.path }, make("span", { class: "dot" }), make("b", {}, hit.name)),
      make("p", { class: "location" }, describeLocation(hit)),
      hit.captions.length > 0 && make("p", { class: "caption", title: hit.captions.join("\n") }, hit.captions.reduce((a, b) => (b.length > a.length ? b : a))),
      make(
        "div", { class: "row" },
        make("div", { class: "relevance", title: description, role: "img", "aria-label": description }, make("span", { class: "bar" }, makeBar(percent)), `${percent} %`),
        make("button", { type: "button", class: "plain", tabindex: "-1", title: "More like this (m)", "aria-label": `More like ${label.slice(0, 60)}`, onclick: () => actions.like(hit.id, 1) }, icon("plus", 17)),
        make("button", { type: "button", class: "plain", tabindex: "-1", title: "Less like this (l)", "aria-label": `Less like ${label.slice(0, 60)}`, onclick: () => actions.like(hit.id, -0.5) }, icon("minus", 17)),
        make("button", { type: "button", class: "plain explain-button", tabindex: "-1", title: "Explain this hit (Enter)", onclick: () => actions.explain(hit.id) }, "Explain"),
      ),
    ),
  );
  element.hit = hit;
  return element;
}

function makeBar(percent) {
  const bar = make("span", { class: "fill" });
  bar.style.display = "block";
  bar.style.width = `${percent}%`;
  return bar;
}

function describeLocation(hit) {
  const segment = hit.start === null ? "" : `${formatTime(hit.start)} – ${hit.end === null ? "end" : formatTime(hit.end)}`;
  const duplicates = hit.duplicates.length ? `+ ${hit.duplicates.length} near-duplicates` : "";
  return [hit.modality === "text" ? "text" : hit.folder, segment, duplicates].filter(Boolean).join(" · ");
}

function makePreview(hit) {
  if (hit.modality === "text") return make("div", { class: "preview text", tabindex: "-1" }, make("p", {}, hit.text));
  if (hit.modality === "audio") return make("div", { class: "preview" }, makeAudioStrip(hit, { tabindex: -1 }));
  const image = make("img", { src: urls.thumbnail(hit.id), alt: hit.captions[0] ?? hit.name, loading: "lazy", onerror: (event) => event.target.replaceWith(makeMissingNote(hit)) });
  if (hit.media_kind !== "video") return make("div", { class: "preview" }, image);
  const box = make("div", { class: "preview" }, image);
  const button = make("button", { type: "button", class: "play-video", tabindex: "-1", "aria-label": `Play ${hit.name}`, onclick: () => box.toggle() }, icon("play"));
  box.append(button);
  box.toggle = () => {
    const video = make("video", { src: `${urls.media(hit.id)}#t=${hit.start ?? 0}`, controls: true, autoplay: true, playsinline: true });
    video.addEventListener("timeupdate", () => { if (hit.end !== null && video.currentTime > hit.end && !video.dataset.past) { video.dataset.past = "yes"; video.pause(); } });
    box.replaceChildren(video);
    box.toggle = () => (video.paused ? video.play() : video.pause());
  };
  return box;
}

const makeMissingNote = (hit) => make("p", { class: "location", role: "alert" }, `${hit.name} cannot be shown: the file was deleted or changed`);

export function togglePlayback(element) {
  (element.querySelector(".audio") ?? element.querySelector(".preview"))?.toggle?.();
}

export function makeEmptyState(collection, actions) {
  const examples = collection.examples.map((text) => make("li", {}, make("button", { type: "button", class: "soft", onclick: () => actions.searchText(text) }, text.length > 70 ? `${text.slice(0, 69)}…` : text)));
  return make(
    "div", { class: "empty" }, icon("search", 44),
    make("h2", {}, collection.items ? "Search by text, audio or image" : "This collection is empty"),
    make("p", {}, collection.items ? "Type a text, drop or paste a file anywhere, or record audio. Each part of a query has a weight and can be negative." : "Run `triptych index FOLDER`, then reload this page."),
    examples.length > 0 && make("ul", { "aria-label": "Examples" }, ...examples),
  );
}

export function makeNoHitsState(actions) {
  return make(
    "div", { class: "empty" }, icon("search", 44), make("h2", {}, "No item matches these filters"),
    make("p", {}, "Remove or change the filters to see other items."),
    make("button", { type: "button", class: "go", onclick: actions.removeFilters }, "Remove the filters"),
  );
}

export function makeErrorState(message, actions) {
  return make(
    "div", { class: "empty error", role: "alert" }, icon("warning", 44), make("h2", {}, "Request failed"), make("pre", {}, message),
    make("button", { type: "button", class: "go", onclick: actions.retry }, "Try again"),
  );
}
