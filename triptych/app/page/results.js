// Hits as cards or rows, best first; the line below which nothing is probably right; empty and error states.
import { ONE, byId, clock, icon, make } from "./elements.js";
import { remember } from "./chips.js";
import { address } from "./requests.js";
import { strip } from "./sound.js";

const place = byId("results");

export function show(answer, actions) {
  const cards = [];
  let drawn = false;
  for (const hit of answer.hits) {
    const beneath = hit.relevance < answer.relevance_threshold;
    if (beneath && !drawn) {
      drawn = true;
      cards.push(make("p", { class: "below", role: "separator" }, cards.length ? "below this, probably not relevant" : "nothing here stands out; these are the nearest, probably not relevant"));
    }
    cards.push(card(hit, beneath, actions));
  }
  place.replaceChildren(...cards);
  const first = place.querySelector(".hit");
  if (first) first.tabIndex = 0;
}

function card(hit, beneath, actions) {
  const label = hit.modality === "text" ? hit.text : hit.name;
  remember(hit);
  const percent = Math.round(100 * hit.relevance);
  const each = hit.parts.length > 1 ? ` (${hit.parts.map((score) => score.toFixed(3)).join(", ")})` : "";
  const said = `relevance ${percent} %, score ${hit.score.toFixed(3)}${each}`;
  const element = make(
    "article", { class: `hit${beneath ? " beneath" : ""}`, tabindex: "-1", data: { id: hit.id, modality: hit.modality }, "aria-label": `${ONE[hit.modality]} ${label.slice(0, 120)}, relevance ${percent} %` },
    shown(hit),
    make(
      "div", { class: "body" },
      hit.modality !== "text" && make("p", { class: `name of-${hit.modality}`, title: hit.path }, make("span", { class: "dot" }), make("b", {}, hit.name)),
      make("p", { class: "where" }, where(hit)),
      hit.captions.length > 0 && make("p", { class: "caption", title: hit.captions.join("\n") }, hit.captions.reduce((a, b) => (b.length > a.length ? b : a))),
      make(
        "div", { class: "row" },
        make("div", { class: "relevance", title: said, role: "img", "aria-label": said }, make("span", { class: "bar" }, fill(percent)), `${percent} %`),
        make("button", { type: "button", class: "plain", tabindex: "-1", title: "More like this (m)", "aria-label": `More like ${label.slice(0, 60)}`, onclick: () => actions.like(hit.id, 1) }, icon("plus", 17)),
        make("button", { type: "button", class: "plain", tabindex: "-1", title: "Less like this (l)", "aria-label": `Less like ${label.slice(0, 60)}`, onclick: () => actions.like(hit.id, -0.5) }, icon("minus", 17)),
        make("button", { type: "button", class: "plain why-button", tabindex: "-1", title: "Why this hit? (Enter)", onclick: () => actions.why(hit.id) }, "Why?"),
      ),
    ),
  );
  element.hit = hit;
  return element;
}

function fill(percent) {
  const bar = make("span", { class: "fill" });
  bar.style.display = "block";
  bar.style.width = `${percent}%`;
  return bar;
}

function where(hit) {
  const moment = hit.start === null ? "" : `${clock(hit.start)} – ${hit.end === null ? "end" : clock(hit.end)}`;
  const copies = hit.copies.length ? `+ ${hit.copies.length} nearly the same` : "";
  return [hit.modality === "text" ? "text" : hit.folder, moment, copies].filter(Boolean).join(" · ");
}

function shown(hit) {
  if (hit.modality === "text") return make("div", { class: "shown words", tabindex: "-1" }, make("p", {}, hit.text));
  if (hit.modality === "audio") return make("div", { class: "shown" }, strip(hit, { tabindex: -1 }));
  const picture = make("img", { src: address.thumbnail(hit.id), alt: hit.captions[0] ?? hit.name, loading: "lazy", onerror: (event) => event.target.replaceWith(gone(hit)) });
  if (hit.media_kind !== "video") return make("div", { class: "shown" }, picture);
  const box = make("div", { class: "shown" }, picture);
  const play = make("button", { type: "button", class: "film", tabindex: "-1", "aria-label": `Play ${hit.name}`, onclick: () => box.toggle() }, icon("play"));
  box.append(play);
  box.toggle = () => {
    const film = make("video", { src: `${address.media(hit.id)}#t=${hit.start ?? 0}`, controls: true, autoplay: true, playsinline: true });
    film.addEventListener("timeupdate", () => { if (hit.end !== null && film.currentTime > hit.end && !film.dataset.past) { film.dataset.past = "yes"; film.pause(); } });
    box.replaceChildren(film);
    box.toggle = () => (film.paused ? film.play() : film.pause());
  };
  return box;
}

const gone = (hit) => make("p", { class: "where", role: "alert" }, `${hit.name} cannot be shown: it has gone or changed`);

export function play(element) {
  (element.querySelector(".sound") ?? element.querySelector(".shown"))?.toggle?.();
}

export function empty(overview, actions) {
  const examples = overview.examples.map((words) => make("li", {}, make("button", { type: "button", class: "soft", onclick: () => actions.ask(words) }, words.length > 70 ? `${words.slice(0, 69)}…` : words)));
  return make(
    "div", { class: "empty" }, icon("search", 44),
    make("h2", {}, overview.items ? "Ask by words, a sound or a picture" : "This collection is empty"),
    make("p", {}, overview.items ? "Type above, drop or paste a file anywhere, or record a sound. Every part can be weighed, or made a minus." : "Fill it: triptych index FOLDER --space RUN, then open this page again."),
    examples.length > 0 && make("ul", { "aria-label": "Examples" }, ...examples),
  );
}

export function nothing(actions) {
  return make(
    "div", { class: "empty" }, icon("search", 44), make("h2", {}, "Nothing passes these filters"),
    make("p", {}, "The collection may hold what you look for, but of another kind, folder or value."),
    make("button", { type: "button", class: "go", onclick: actions.unfilter }, "Remove the filters"),
  );
}

export function trouble(message, actions) {
  return make(
    "div", { class: "empty trouble", role: "alert" }, icon("trouble", 44), make("h2", {}, "That did not work"), make("pre", {}, message),
    make("button", { type: "button", class: "go", onclick: actions.again }, "Try again"),
  );
}
