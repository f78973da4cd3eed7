"use strict";
const at = (id) => document.getElementById(id);
const KINDS = {{ kinds | tojson }};
let name = "", page = "", of = "", sending = null, held = null, taken = 0;

function say(text, bad = false) {
  at("said").textContent = text;
  at("said").classList.toggle("bad", bad);
}

// A document is sent as it is; what it holds is read by the service alone.
function hold(file) {
  held = file;
  at("text").required = !file;
  at("text").placeholder = file ? `${file.name} is sent as it is` : "";
}

const typeOf = (file) => KINDS[(/\.[^.]*$/.exec(file.name.toLowerCase()) || [""])[0]];

async function take(file) {
  if (!file || at("send").disabled) return;
  const mine = ++taken;
  hold(null);
  if (typeOf(file)) {
    at("text").value = "";
    name = file.name;
    hold(file);
    say(`${file.name}: ${file.size} bytes`);
    at("send").focus();
    return;
  }
  try {
    const bytes = await file.arrayBuffer();
    if (mine !== taken) return; // another was taken meanwhile
    at("text").value = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    name = file.name;
    say(`${file.name}: ${at("text").value.length} characters`);
    at("send").focus();
  } catch (error) {
    if (mine === taken) say(`${file.name}: not a text in UTF-8`, true);
  }
}

// A conversation is recognised by its form: a list of messages, or an object that holds one, or a trace.
function asked(text) {
  try {
    const content = JSON.parse(text);
    const messages = Array.isArray(content) ? content : content.messages;
    const said = (m) => m && [m.role, m.type].some((kind) => typeof kind === "string");
    if (Array.isArray(messages) ? messages.length && messages.every(said) : content.resourceSpans || content.observations)
      return { messages: content };
  } catch (error) { /* a text */ }
  return { text };
}

async function send() {
  sending = new AbortController();
  const sent = name; // files may be dropped, and the text be changed, before the answer is there
  taken++;
  at("send").disabled = true;
  say("Reading …");
  const decoder = at("decoder").value;
  const headers = { "Content-Type": held ? typeOf(held) : "application/json", Accept: "text/html" };
  if (at("token").value) headers.Authorization = `Bearer ${at("token").value.trim()}`;
  const body = held || JSON.stringify({ ...asked(at("text").value), decoder });
  try {
    const answer = await fetch(held ? `v1/audit?decoder=${decoder}` : "v1/audit", { method: "POST", headers, body, signal: sending.signal });
    const said = await answer.text();
    if (answer.ok) show(said, sent);
    else say(`${answer.status}: ${JSON.parse(said).error}`, true);
  } catch (error) {
    say(`The service did not answer: ${error.message}`, true);
  }
  at("send").disabled = false;
}

function show(report, sent) {
  page = report;
  of = sent;
  at("report").srcdoc = report;
  at("name").textContent = of ? `Report on ${of}` : "Report";
  at("ask").hidden = true;
  at("found").hidden = false;
  at("name").focus();
  say("");
}

at("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("file").addEventListener("change", () => take(at("file").files[0]));
at("text").addEventListener("input", () => { taken++; name = ""; hold(null); });
at("again").addEventListener("click", () => {
  at("found").hidden = true;
  at("ask").hidden = false;
  at("report").srcdoc = "";
  at("text").focus();
});
at("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([page], { type: "text/html" }));
  link.download = `${of || "text"}.html`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
for (const kind of ["dragover", "dragleave", "drop"])
  document.addEventListener(kind, (event) => {
    if (kind !== "dragleave") event.preventDefault();
    at("text").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && !at("ask").hidden) {
      const { files } = event.dataTransfer, text = event.dataTransfer.getData("text");
      if (files.length) take(files[0]);
      else if (text && !at("send").disabled) { taken++; hold(null); at("text").value = text; name = ""; say(`${text.length} characters`); at("send").focus(); }
    }
  });
