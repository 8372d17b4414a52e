// The search box: text, files by picker, drop and paste, and the microphone.
import { byId, icon, make } from "./elements.js";
import { state } from "./query.js";
import { record } from "./recorder.js";

const input = byId("text");
let recording = null;

export function setBoxText(text) {
  const existing = state.parts.find((part) => part.inBox);
  if (!text) state.parts = state.parts.filter((part) => part !== existing);
  else if (existing) existing.text = text;
  else state.parts = [{ type: "text", text, weight: 1, inBox: true }, ...state.parts];
}

export function renderBox() {
  // Show the first text part of the URL that has weight 1 in the search box.
  const first = state.parts.find((part) => part.inBox) ?? state.parts.find((part) => part.type === "text" && part.weight === 1 && !part.isAdded);
  if (first) first.inBox = true;
  if (document.activeElement !== input || !first) input.value = first?.text ?? "";
}

export function addFiles(files, onChange) {
  for (const file of files) state.parts.push({ type: "file", name: file.name || "pasted", file, weight: 1 });
  if (files.length) onChange();
}

export function listenToBox(onChange, showError) {
  byId("add").append(icon("plus"));
  byId("file").append(icon("file"));
  byId("record").append(icon("microphone"));
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { setBoxText(input.value.trim()); onChange({ isTyping: true }); }, 350);
  });
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    setBoxText(input.value.trim());
    onChange();
  });
  const addPart = () => {
    clearTimeout(timer);
    setBoxText(input.value.trim());
    const part = state.parts.find((other) => other.inBox);
    if (!part) return input.focus();
    delete part.inBox;
    part.isAdded = true;
    input.value = "";
    input.focus();
    return onChange();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); addPart(); }
  });
  byId("add").addEventListener("click", addPart);
  byId("file").addEventListener("click", () => byId("picker").click());
  byId("picker").addEventListener("change", (event) => { addFiles([...event.target.files], onChange); event.target.value = ""; });
  byId("record").addEventListener("click", () => toggleRecording(onChange, showError));
  listenForFiles(onChange);
}

function listenForFiles(onChange) {
  let depth = 0;
  const overlay = byId("drop");
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragenter", (event) => { if (hasFiles(event)) { depth += 1; overlay.hidden = false; } });
  addEventListener("dragleave", (event) => { if (hasFiles(event) && --depth <= 0) { depth = 0; overlay.hidden = true; } });
  addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    depth = 0;
    overlay.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    addFiles([...event.dataTransfer.files], onChange);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) { event.preventDefault(); addFiles(files, onChange); }
  });
}

export async function toggleRecording(onChange, showError) {
  const button = byId("record");
  if (recording) return recording.stop();
  if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) {
    return showError("the browser blocks the microphone at this address; open the page at http://127.0.0.1 or over https");
  }
  const time = make("span", {}, "0.0 s");
  try {
    recording = await record((seconds) => { time.textContent = `${seconds.toFixed(1)} s`; });
    button.setAttribute("aria-pressed", "true");
    button.setAttribute("aria-label", "Stop recording and search");
    button.replaceChildren(icon("stop", 16), time);
    addFiles([await recording.file], onChange);
  } catch (error) {
    showError(error.name === "NotAllowedError" ? "microphone access was denied; allow it in the address bar and try again" : `recording failed (${error.message})`);
  } finally {
    recording = null;
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", "Record audio");
    button.replaceChildren(icon("microphone"));
  }
  return undefined;
}
