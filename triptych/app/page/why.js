// Why this hit: the query's words, the picture with its heat, the sound with its lit moments, linked with each other.
import { ONE, byId, clock, colour, icon, make } from "./elements.js";
import { state } from "./query.js";
import { address, explain, item, usable } from "./requests.js";

const dialog = byId("why");
let asking = null;
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => { state.why = null; dialog.onleave?.(); });

export async function open(id, onleave) {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  dialog.onleave = onleave;
  frame("Why this hit?", make("p", { class: "note", role: "status" }, "Looking into it …"));
  if (!dialog.open) dialog.showModal();
  const parts = usable(state.parts);
  try {
    const known = await item(id);
    const others = known.siblings.filter((other) => other.modality !== "text" && other.modality !== known.modality);
    const found = await Promise.all([id, ...others.map((other) => other.id)].map((one) => explain(parts, one, signal)));
    if (!signal.aborted) show(found, parts);
  } catch (error) {
    if (error.name !== "AbortError") frame("Why this hit?", make("p", { class: "note", role: "alert" }, error.message));
  }
}

function frame(title, ...content) {
  const close = make("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"));
  dialog.replaceChildren(
    make("div", { class: "panel-top" }, make("h2", { id: "why-title" }, title), close),
    make("div", { class: "panel-body" }, ...content),
  );
}

function show(found, parts) {
  const [first] = found;
  const label = first.item.modality === "text" ? "this text" : first.item.name;
  const blocks = first.parts.map((told, number) => block(found, number, parts[told.part_index])); // a film is two of them
  const several = first.parts.length > 1
    ? make("p", { class: "note" }, "Each part of the query has its own score and its own sum; the hit's place is decided by all of them together, by their weights.")
    : null;
  frame(
    `Why ${label}?`, ...blocks.map((one) => one.element), several,
    make("div", { class: "legend" }, "speaks against", make("span", { class: "ramp" }), "speaks for it", make("span", {}, "· point at a word, a region or a moment to see what it goes with")),
    make("p", { class: "note" }, first.method), ...wholeNotes(found),
  );
  blocks.forEach((one) => one.start());
}

// One part of the query, as it stands against the hit and what belongs to it.
function block(found, number, asked) {
  const [first] = found;
  const told = first.parts[number];
  const rest = Math.abs(told.residual) >= 0.0005;
  const sum = make(
    "p", { class: "sum" },
    make("span", {}, "score ", make("b", { class: "score" }, told.score.toFixed(3))),
    make("span", {}, "= the parts' ", make("b", { class: "total" }, told.total.toFixed(3))),
    rest && make("span", { title: "what no single part accounts for: constants of the network and of the similarity" }, "+ the rest ", make("b", {}, told.residual.toFixed(3))),
    told.weight !== 1 && make("span", {}, "× weight ", make("b", {}, told.weight.toFixed(1))),
  );
  const strips = [];
  const link = (from, place) => {
    for (const strip of strips) {
      if (strip === from) strip.mark(place);
      else if (from === query) strip.paint(place === null ? null : strip.heat[place]);
      else if (strip === query) strip.paint(place === null ? null : from.heat.map((row) => row[place]));
      else strip.paint(null);
    }
  };
  const query = side(told.query, asked, (place) => link(query, place), `the query: ${ONE[told.query.modality]}`);
  strips.push(query);
  for (const one of found) {
    const part = one.parts[number];
    const title = `${one === first ? "the hit" : "belongs to it"}: ${ONE[one.item.modality]}${one === first ? "" : ` · score ${part.score.toFixed(3)}`}`;
    const hit = side(part.hit, one.item, (place) => link(hit, place), title);
    hit.heat = part.attribution;
    strips.push(hit);
  }
  return { element: make("div", {}, sum, query.element, make("div", { class: "strips" }, ...strips.slice(1).map((strip) => strip.element))), start: () => strips.forEach((strip) => strip.paint(null)) };
}

function side(told, what, point, title) {
  const strip = { text: words, image: picture, audio: sound }[told.modality](told, what, point);
  const element = make("div", { class: "strip", role: "group", "aria-label": title }, make("h3", {}, title), strip.element);
  return { ...strip, element, heat: [] };
}

function shade(value, most, strongest = 0.62) {
  const share = most ? Math.min(1, Math.abs(value) / most) : 0;
  return `rgba(${colour(value < 0 ? "cool" : "heat")}, ${(strongest * share).toFixed(3)})`;
}

const largest = (values) => Math.max(1e-9, ...values.map(Math.abs));

// A part as a button with its number: what it goes with lights up while it is pointed at or has the focus.
function chip(told, number, label, point, settings = {}) {
  const button = make("button", {
    type: "button", class: "word", "aria-pressed": "false", onpointerenter: () => point(number), onpointerleave: () => point(null),
    onfocus: () => point(number), onblur: () => point(null), ...settings,
  }, label, make("small", {}, told.contributions[number].toFixed(3)));
  return {
    button,
    paint: (value, most) => {
      button.style.background = shade(value, most, 0.4); // words must stay readable on it
      button.lastChild.textContent = value.toFixed(3);
    },
    mark: (place) => button.setAttribute("aria-pressed", String(place === number)),
  };
}

// What lies nowhere in particular comes last, if there is any: marks that a network adds to a text, a class token.
const WHOLE = {
  text: "The whole text: what stands for no single word, such as the marks that the network adds at the start and the end. They take up what the sentence says as a whole; their share cannot be divided among the words.",
  image: "The whole picture: what stands for no single region. The network takes up the picture as a whole there; its share cannot be divided among the regions.",
  audio: "The whole sound: what stands for no single moment. The network takes up the sound as a whole there; its share cannot be divided among the moments.",
};

function wholeNotes(found) {
  const sides = found.flatMap((one) => one.parts.flatMap((told) => [told.query, told.hit]));
  const kinds = new Set(sides.filter((one) => one.locations.some((place) => !place.length)).map((one) => one.modality));
  return [...kinds].map((kind) => make("p", { class: "note" }, WHOLE[kind]));
}

function whole(told, point) {
  const number = told.locations.findIndex((place) => !place.length);
  if (number < 0) return null;
  return { number, ...chip(told, number, `the whole ${ONE[told.modality]}`, point, { class: "word whole", title: WHOLE[told.modality] }) };
}

// A strip of parts that have a place, and below it the part that has none.
function withWhole(strip, told, point) {
  const rest = whole(told, point);
  if (!rest) return strip;
  return {
    element: make("div", {}, strip.element, make("div", { class: "word-strip" }, rest.button)),
    paint: (values) => { strip.paint(values); const shown = values ?? told.contributions; rest.paint(shown[rest.number], largest(shown)); },
    mark: (place) => { strip.mark(place); rest.mark(place); },
  };
}

const placed = (told, values) => values.filter((_, number) => told.locations[number].length);

function words(told, _, point) {
  const chips = told.locations.flatMap((place, number) => (place.length ? [chip(told, number, told.text.slice(place[0], place[1]), point)] : []));
  const rest = whole(told, point);
  if (rest) chips.push(rest);
  return {
    element: make("div", { class: "word-strip", role: "group" }, ...chips.map((one) => one.button)),
    paint: (values) => {
      const shown = values ?? told.contributions;
      chips.forEach((one, number) => one.paint(shown[number], largest(shown)));
    },
    mark: (place) => chips.forEach((one) => one.mark(place)),
  };
}

function source(what, kind) {
  if (what.file) return URL.createObjectURL(what.file);
  return kind === "image" ? address.thumbnail(what.id, 1024) : null;
}

// Of a film that is asked with, the picture in its middle is what the space has seen.
function frameOf(what) {
  if (!what.file?.type.startsWith("video/")) return null;
  const film = make("video", { src: source(what), "aria-label": what.name, onloadedmetadata: () => { film.currentTime = film.duration / 2; } });
  film.muted = true;
  return film;
}

function picture(told, what, point) {
  const image = frameOf(what) ?? make("img", { src: source(what, "image"), alt: what.captions?.[0] ?? what.name ?? "the picture" });
  const canvas = make("canvas", { role: "img", "aria-label": "heat: where the picture speaks for the match" });
  let shown = told.contributions;
  let marked = null;
  const draw = () => {
    const [width, height] = [image.clientWidth, image.clientHeight];
    if (!width) return;
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d");
    const most = largest(placed(told, shown));
    const boxes = told.locations.map((place, number) => [place, number]).filter(([place]) => place.length === 4);
    const wide = boxes.length ? (boxes[0][0][2] - boxes[0][0][0]) * width : 0;
    pen.filter = `blur(${Math.min(14, wide / 3)}px)`;
    for (const [[x0, y0, x1, y1], number] of boxes) {
      pen.fillStyle = shade(shown[number], most);
      pen.fillRect(x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height);
    }
    pen.filter = "none";
    if (marked !== null && told.locations[marked].length === 4) {
      const [x0, y0, x1, y1] = told.locations[marked];
      pen.strokeStyle = "#fff";
      pen.lineWidth = 2;
      pen.strokeRect(x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height);
    }
  };
  for (const ready of ["load", "seeked"]) image.addEventListener(ready, draw);
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const found = told.locations.findIndex(([x0, y0, x1, y1]) => x >= x0 && x < x1 && y >= y0 && y < y1);
    point(found < 0 ? null : found);
  };
  canvas.addEventListener("pointermove", at);
  canvas.addEventListener("pointerleave", () => point(null));
  return withWhole({
    element: make("div", { class: "heat-picture" }, image, canvas),
    paint: (values) => { shown = values ?? told.contributions; marked = null; draw(); },
    mark: (place) => { marked = place; draw(); },
  }, told, point);
}

function sound(told, what, point) {
  const [start, end] = told.span;
  const image = make("img", { alt: "", src: what.id ? `${address.spectrogram(what.id, 800)}&start=${start}&end=${end}` : undefined });
  const canvas = make("canvas", { role: "img", "aria-label": `lit moments of the sound from ${clock(start)} to ${clock(end)}` });
  const box = make("div", { class: "heat-sound" }, what.id ? image : null, make("div", { class: "lane" }), canvas);
  let shown = told.contributions;
  let marked = null;
  const x = (seconds) => ((seconds - start) / Math.max(1e-6, end - start)) * canvas.width;
  const draw = () => {
    canvas.width = box.clientWidth;
    canvas.height = box.clientHeight;
    const pen = canvas.getContext("2d");
    const most = largest(placed(told, shown));
    const lane = 44;
    told.locations.forEach((place, number) => {
      if (place.length !== 2) return;
      const [left, right] = [x(place[0]), Math.min(canvas.width, x(place[1]))];
      const share = Math.max(0, shown[number]) / most;
      pen.fillStyle = `rgba(0, 0, 0, ${(0.6 * (1 - share)).toFixed(3)})`; // what is not lit is dimmed
      pen.fillRect(left, 0, right - left, canvas.height - lane);
      const tall = (Math.abs(shown[number]) / most) * (lane / 2 - 3);
      pen.fillStyle = `rgb(${colour(shown[number] < 0 ? "cool" : "heat")})`;
      pen.fillRect(left, canvas.height - lane / 2 - (shown[number] < 0 ? 0 : tall), Math.max(1, right - left - 1), tall);
      if (number === marked) {
        pen.strokeStyle = "#fff";
        pen.lineWidth = 2;
        pen.strokeRect(left, 1, right - left, canvas.height - lane - 2);
      }
    });
  };
  canvas.addEventListener("pointermove", (event) => {
    const seconds = start + ((event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (end - start);
    const found = told.locations.findIndex((place) => place.length === 2 && seconds >= place[0] && seconds < place[1]);
    point(found < 0 ? null : found);
  });
  canvas.addEventListener("pointerleave", () => point(null));
  return withWhole({
    element: box,
    paint: (values) => { shown = values ?? told.contributions; marked = null; draw(); },
    mark: (place) => { marked = place; draw(); },
  }, told, point);
}
