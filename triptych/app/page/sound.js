// A sound on the page: its outline or spectrogram, the moment that matches, and one player for all of them.
import { byId, clock, colour, icon, make } from "./elements.js";
import { address, peaks } from "./requests.js";

const player = byId("player");
let current = null; // the strip that plays
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      seen.unobserve(entry.target);
      entry.target.show();
    }
  }
}, { rootMargin: "300px" });

player.addEventListener("timeupdate", () => current?.move(player.currentTime));
player.addEventListener("ended", stop);
player.addEventListener("error", () => {
  if (!current) return;
  if (current.plain) return current.complain("this sound cannot be played here");
  current.plain = true; // a format this browser does not know: the server makes a WAV of the moment
  current.play();
});

export function stop() {
  player.pause();
  current?.rest();
  current = null;
}

export function strip(hit, settings = {}) {
  const label = `Play ${hit.name}`;
  const canvas = make("canvas");
  const picture = make("img", { class: "spectrogram", alt: "", hidden: true });
  const moment = make("div", { class: "moment", hidden: true });
  const cursor = make("div", { class: "cursor", hidden: true });
  const button = make("button", { type: "button", class: "play", "aria-label": label, tabindex: settings.tabindex ?? 0 }, icon("play"));
  const swap = make("button", { type: "button", class: "swap", tabindex: settings.tabindex ?? 0, "aria-label": "Show the spectrogram", title: "Outline or spectrogram (s)" }, "spectrogram");
  const time = make("span", { class: "time" }, "");
  const box = make("div", { class: "sound" }, canvas, picture, moment, cursor, button, swap, time);
  let outline = null;

  const share = (seconds) => (seconds - outline.start) / Math.max(1e-6, outline.end - outline.start);

  box.show = async () => {
    try {
      outline = await peaks(hit.id, 240);
    } catch (error) {
      return box.complain(error.message);
    }
    draw(canvas, outline.peaks);
    time.textContent = clock(outline.duration);
    const [start, end] = [hit.start ?? 0, hit.end ?? outline.duration];
    if (start > outline.start + 0.05 || end < outline.end - 0.05) {
      moment.hidden = false;
      moment.style.left = `${100 * Math.max(0, share(start))}%`;
      moment.style.right = `${100 * Math.max(0, 1 - share(end))}%`;
      time.textContent = `${clock(start)} – ${clock(end)}`;
    }
  };
  box.redraw = () => outline && draw(canvas, outline.peaks);
  box.complain = (message) => {
    rest();
    box.append(make("p", { class: "trouble", role: "alert" }, message));
  };
  box.move = (seconds) => {
    const real = box.plain ? seconds + (hit.start ?? 0) : seconds;
    if (hit.end !== null && hit.end !== undefined && real >= hit.end) return stop();
    if (outline) cursor.style.left = `${100 * Math.min(1, Math.max(0, share(real)))}%`;
  };
  box.play = (from = null) => {
    if (current !== box) stop();
    current = box;
    player.src = box.plain ? address.sound(hit.id) : address.media(hit.id);
    const begin = box.plain ? 0 : (from ?? hit.start ?? 0);
    player.currentTime = begin;
    player.play().catch((error) => { if (error.name === "NotAllowedError") rest(); });
    cursor.hidden = false;
    button.replaceChildren(icon("pause"));
    button.setAttribute("aria-label", `Stop ${hit.name}`);
    box.classList.add("playing");
  };
  const rest = () => {
    cursor.hidden = true;
    button.replaceChildren(icon("play"));
    button.setAttribute("aria-label", label);
    box.classList.remove("playing");
  };
  box.rest = rest;
  box.toggle = () => (current === box ? stop() : box.play());
  box.swap = () => {
    const spectral = picture.hidden;
    if (spectral && !picture.src) picture.src = address.spectrogram(hit.id);
    picture.hidden = !spectral;
    canvas.hidden = spectral;
    box.classList.toggle("spectral", spectral);
    swap.textContent = spectral ? "outline" : "spectrogram";
    swap.setAttribute("aria-label", spectral ? "Show the outline" : "Show the spectrogram");
  };
  box.addEventListener("click", (event) => {
    if (event.target === swap) return box.swap();
    if (button.contains(event.target) || !outline || box.plain) return box.toggle();
    if (current === box) return stop();
    const where = (event.clientX - box.getBoundingClientRect().left) / box.clientWidth;
    const at = outline.start + where * (outline.end - outline.start);
    const inside = at >= (hit.start ?? 0) && at < (hit.end ?? Infinity);
    return box.play(inside ? at : null);
  });
  seen.observe(box);
  return box;
}

function draw(canvas, found) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 300;
  const height = canvas.clientHeight || 170;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = colour("audio");
  const loudest = Math.max(0.05, ...found.flat().map(Math.abs));
  const step = width / found.length;
  found.forEach(([low, high], place) => {
    const top = height / 2 - (high / loudest) * height * 0.42;
    const bottom = height / 2 - (low / loudest) * height * 0.42;
    pen.fillRect(place * step, top, Math.max(1, step - 0.6), Math.max(1, bottom - top));
  });
}
