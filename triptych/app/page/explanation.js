// The explanation of a hit: words of the query, and attribution over image and audio. Matching parts are highlighted together.
import { MODALITY_NAMES, byId, formatTime, themeColour, icon, make } from "./elements.js";
import { state } from "./query.js";
import { explain, fetchItem, urls, usableParts } from "./requests.js";

const dialog = byId("explanation");
let controller = null;
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => { state.explain = null; dialog.onleave?.(); });

export async function openExplanation(id, onleave) {
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  dialog.onleave = onleave;
  setContent("Explanation", make("p", { class: "note", role: "status" }, "Computing the explanation …"));
  if (!dialog.open) dialog.showModal();
  const parts = usableParts(state.parts);
  try {
    const hitItem = await fetchItem(id);
    const others = hitItem.siblings.filter((other) => other.modality !== "text" && other.modality !== hitItem.modality);
    const responses = await Promise.all([id, ...others.map((other) => other.id)].map((itemId) => explain(parts, itemId, signal)));
    if (!signal.aborted) render(responses, parts);
  } catch (error) {
    if (error.name !== "AbortError") setContent("Explanation", make("p", { class: "note", role: "alert" }, error.message));
  }
}

function setContent(title, ...content) {
  const close = make("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"));
  dialog.replaceChildren(
    make("div", { class: "panel-top" }, make("h2", { id: "explanation-title" }, title), close),
    make("div", { class: "panel-body" }, ...content),
  );
}

function render(responses, parts) {
  const [first] = responses;
  const label = first.item.modality === "text" ? "this text" : first.item.name;
  const blocks = first.parts.map((explanation, number) => makeBlock(responses, number, parts[explanation.part_index])); // a video has two blocks, image and audio
  const several = first.parts.length > 1
    ? make("p", { class: "note" }, "Each part of the query has its own score. The rank of the hit depends on the scores and weights of all parts.")
    : null;
  setContent(
    `Explanation: ${label}`, ...blocks.map((one) => one.element), several,
    make("div", { class: "legend" }, "lowers the score", make("span", { class: "ramp" }), "raises the score", make("span", {}, "· point at a word, a region or a segment to highlight the matching parts")),
    make("p", { class: "note" }, first.method), ...makeWholeNotes(responses),
  );
  blocks.forEach((one) => one.start());
}

// The block of one query part: the part, the hit and the hit's siblings.
function makeBlock(responses, number, queryPart) {
  const [first] = responses;
  const explanation = first.parts[number];
  const rest = Math.abs(explanation.residual) >= 0.0005;
  const sum = make(
    "p", { class: "sum" },
    make("span", {}, "score ", make("b", { class: "score" }, explanation.score.toFixed(3))),
    make("span", {}, "= sum over parts ", make("b", { class: "total" }, explanation.total.toFixed(3))),
    rest && make("span", { title: "constant terms of the network and the similarity, which belong to no part" }, "+ residual ", make("b", {}, explanation.residual.toFixed(3))),
    explanation.weight !== 1 && make("span", {}, "× weight ", make("b", {}, explanation.weight.toFixed(1))),
  );
  const strips = [];
  const link = (from, index) => {
    for (const strip of strips) {
      if (strip === from) strip.mark(index);
      else if (from === query) strip.paint(index === null ? null : strip.attribution[index]);
      else if (strip === query) strip.paint(index === null ? null : from.attribution.map((row) => row[index]));
      else strip.paint(null);
    }
  };
  const query = makeSide(explanation.query, queryPart, (index) => link(query, index), `query: ${MODALITY_NAMES[explanation.query.modality]}`);
  strips.push(query);
  for (const one of responses) {
    const part = one.parts[number];
    const title = `${one === first ? "hit" : "same row or file"}: ${MODALITY_NAMES[one.item.modality]}${one === first ? "" : ` · score ${part.score.toFixed(3)}`}`;
    const hit = makeSide(part.hit, one.item, (index) => link(hit, index), title);
    hit.attribution = part.attribution;
    strips.push(hit);
  }
  return { element: make("div", {}, sum, query.element, make("div", { class: "strips" }, ...strips.slice(1).map((strip) => strip.element))), start: () => strips.forEach((strip) => strip.paint(null)) };
}

function makeSide(side, item, onPoint, title) {
  const strip = { text: makeWords, image: makeImage, audio: makeAudio }[side.modality](side, item, onPoint);
  const classes = side.classes.map((one) => `${one.name} (${one.contribution.toFixed(3)})`).join("; ");
  const note = classes ? make("p", { class: "note" }, `Classes that contribute most: ${classes}`) : null;
  const element = make("div", { class: "strip", role: "group", "aria-label": title }, make("h3", {}, title), strip.element, note);
  return { ...strip, element, attribution: [] };
}

function shade(value, maximum, strongest = 0.62) {
  const fraction = maximum ? Math.min(1, Math.abs(value) / maximum) : 0;
  return `rgba(${themeColour(value < 0 ? "negative" : "positive")}, ${(strongest * fraction).toFixed(3)})`;
}

const maxAbsolute = (values) => Math.max(1e-9, ...values.map(Math.abs));

// A part as a button with its contribution. While the button is hovered or focused, matching parts are highlighted.
function makeChip(side, number, label, onPoint, settings = {}) {
  const button = make("button", {
    type: "button", class: "word", "aria-pressed": "false", onpointerenter: () => onPoint(number), onpointerleave: () => onPoint(null),
    onfocus: () => onPoint(number), onblur: () => onPoint(null), ...settings,
  }, label, make("small", {}, side.contributions[number].toFixed(3)));
  return {
    button,
    paint: (value, maximum) => {
      button.style.background = shade(value, maximum, 0.4); // light enough for readable text
      button.lastChild.textContent = value.toFixed(3);
    },
    mark: (index) => button.setAttribute("aria-pressed", String(index === number)),
  };
}

// Parts without a location, such as special tokens of a text or the class token of an image, come last.
const WHOLE_NOTES = {
  text: "Whole text: tokens that belong to no single word, such as special tokens at the start and the end. These tokens represent the complete text, so their contribution cannot be divided among the words.",
  image: "Whole image: the part that belongs to no single region. This part represents the complete image, so its contribution cannot be divided among the regions.",
  audio: "Whole audio: the part that belongs to no single segment. This part represents the complete audio, so its contribution cannot be divided among the segments.",
};

function makeWholeNotes(responses) {
  const sides = responses.flatMap((one) => one.parts.flatMap((explanation) => [explanation.query, explanation.hit]));
  const modalities = new Set(sides.filter((one) => one.locations.some((location) => !location.length)).map((one) => one.modality));
  return [...modalities].map((modality) => make("p", { class: "note" }, WHOLE_NOTES[modality]));
}

function makeWhole(side, onPoint) {
  const number = side.locations.findIndex((location) => !location.length);
  if (number < 0) return null;
  return { number, ...makeChip(side, number, `whole ${MODALITY_NAMES[side.modality]}`, onPoint, { class: "word whole", title: WHOLE_NOTES[side.modality] }) };
}

// A strip of the parts that have locations, followed by the part without a location.
function withWhole(strip, side, onPoint) {
  const rest = makeWhole(side, onPoint);
  if (!rest) return strip;
  return {
    element: make("div", {}, strip.element, make("div", { class: "word-strip" }, rest.button)),
    paint: (values) => { strip.paint(values); const current = values ?? side.contributions; rest.paint(current[rest.number], maxAbsolute(current)); },
    mark: (index) => { strip.mark(index); rest.mark(index); },
  };
}

const withLocation = (side, values) => values.filter((_, number) => side.locations[number].length);

function makeWords(side, _, onPoint) {
  const chips = side.locations.flatMap((location, number) => (location.length ? [makeChip(side, number, side.text.slice(location[0], location[1]), onPoint)] : []));
  const rest = makeWhole(side, onPoint);
  if (rest) chips.push(rest);
  return {
    element: make("div", { class: "word-strip", role: "group" }, ...chips.map((one) => one.button)),
    paint: (values) => {
      const current = values ?? side.contributions;
      chips.forEach((one, number) => one.paint(current[number], maxAbsolute(current)));
    },
    mark: (index) => chips.forEach((one) => one.mark(index)),
  };
}

function sourceUrl(item, modality) {
  if (item.file) return URL.createObjectURL(item.file);
  return modality === "image" ? urls.thumbnail(item.id, 1024) : null;
}

// A video query is represented by its middle frame.
function makeVideoFrame(item) {
  if (!item.file?.type.startsWith("video/")) return null;
  const video = make("video", { src: sourceUrl(item), "aria-label": item.name, onloadedmetadata: () => { video.currentTime = video.duration / 2; } });
  video.muted = true;
  return video;
}

function makeImage(side, item, onPoint) {
  const image = makeVideoFrame(item) ?? make("img", { src: sourceUrl(item, "image"), alt: item.captions?.[0] ?? item.name ?? "image" });
  const canvas = make("canvas", { role: "img", "aria-label": "attribution: regions of the image that match" });
  let current = side.contributions;
  let marked = null;
  const draw = () => {
    const [width, height] = [image.clientWidth, image.clientHeight];
    if (!width || !height) return; // the image is not loaded yet
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const maximum = maxAbsolute(withLocation(side, current));
    const boxes = side.locations.map((location, number) => [location, number]).filter(([location]) => location.length === 4);
    const wide = boxes.length ? (boxes[0][0][2] - boxes[0][0][0]) * width : 0;
    context.filter = `blur(${Math.min(14, wide / 3)}px)`;
    for (const [[x0, y0, x1, y1], number] of boxes) {
      context.fillStyle = shade(current[number], maximum);
      context.fillRect(x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height);
    }
    context.filter = "none";
    if (marked !== null && side.locations[marked].length === 4) {
      const [x0, y0, x1, y1] = side.locations[marked];
      context.strokeStyle = "#fff";
      context.lineWidth = 2;
      context.strokeRect(x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height);
    }
  };
  for (const ready of ["load", "seeked"]) image.addEventListener(ready, draw);
  const onMove = (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const index = side.locations.findIndex(([x0, y0, x1, y1]) => x >= x0 && x < x1 && y >= y0 && y < y1);
    onPoint(index < 0 ? null : index);
  };
  canvas.addEventListener("pointermove", onMove);
  canvas.addEventListener("pointerleave", () => onPoint(null));
  return withWhole({
    element: make("div", { class: "image-attribution" }, image, canvas),
    paint: (values) => { current = values ?? side.contributions; marked = null; draw(); },
    mark: (index) => { marked = index; draw(); },
  }, side, onPoint);
}

function makeAudio(side, item, onPoint) {
  const [start, end] = side.span;
  const image = make("img", { alt: "", src: item.id ? `${urls.spectrogram(item.id, 800)}&start=${start}&end=${end}` : undefined });
  const canvas = make("canvas", { role: "img", "aria-label": `attribution: segments of the audio from ${formatTime(start)} to ${formatTime(end)}` });
  const box = make("div", { class: "audio-attribution" }, item.id ? image : null, make("div", { class: "lane" }), canvas);
  let current = side.contributions;
  let marked = null;
  const x = (seconds) => ((seconds - start) / Math.max(1e-6, end - start)) * canvas.width;
  const draw = () => {
    canvas.width = box.clientWidth;
    canvas.height = box.clientHeight;
    const context = canvas.getContext("2d");
    const maximum = maxAbsolute(withLocation(side, current));
    const lane = 44;
    side.locations.forEach((location, number) => {
      if (location.length !== 2) return;
      const [left, right] = [x(location[0]), Math.min(canvas.width, x(location[1]))];
      const fraction = Math.max(0, current[number]) / maximum;
      context.fillStyle = `rgba(0, 0, 0, ${(0.6 * (1 - fraction)).toFixed(3)})`; // segments that do not match are dimmed
      context.fillRect(left, 0, right - left, canvas.height - lane);
      const barHeight = (Math.abs(current[number]) / maximum) * (lane / 2 - 3);
      context.fillStyle = `rgb(${themeColour(current[number] < 0 ? "negative" : "positive")})`;
      context.fillRect(left, canvas.height - lane / 2 - (current[number] < 0 ? 0 : barHeight), Math.max(1, right - left - 1), barHeight);
      if (number === marked) {
        context.strokeStyle = "#fff";
        context.lineWidth = 2;
        context.strokeRect(left, 1, right - left, canvas.height - lane - 2);
      }
    });
  };
  canvas.addEventListener("pointermove", (event) => {
    const seconds = start + ((event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (end - start);
    const index = side.locations.findIndex((location) => location.length === 2 && seconds >= location[0] && seconds < location[1]);
    onPoint(index < 0 ? null : index);
  });
  canvas.addEventListener("pointerleave", () => onPoint(null));
  return withWhole({
    element: box,
    paint: (values) => { current = values ?? side.contributions; marked = null; draw(); },
    mark: (index) => { marked = index; draw(); },
  }, side, onPoint);
}
