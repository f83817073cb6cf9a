// The tail of a topic: rows for the events of the server; every text is set as a text.
"use strict";
(() => {
  const holder = document.getElementById("live");
  const rows = document.getElementById("messages");
  const state = document.getElementById("state");
  const pause = document.getElementById("pause");
  const most = 200;
  let paused = false;
  let waiting = [];
  state.hidden = pause.hidden = false;

  const cell = (label, kind) => {
    const made = document.createElement("td");
    made.dataset.label = label;
    if (kind) made.className = kind;
    return made;
  };
  const span = (text, kind) => {
    const made = document.createElement("span");
    made.className = kind;
    made.textContent = text;
    return made;
  };
  const show = (message) => {
    const row = document.createElement("tr");
    row.className = "new";
    const stored = cell("Stored", "time");
    const link = document.createElement("a");
    link.href = "/message?at=" + Number(message.at);
    link.textContent = message.time;
    stored.append(link);
    const place = cell("Queue @ offset", "num");
    place.textContent = message.place.replace("@", " @ ");
    const words = cell("Tags, keys", "words");
    if (message.tags) words.append(span(message.tags, "tag"), " ");
    for (const key of message.keys.split(" ")) if (key) words.append(span(key, "key"), " ");
    const body = cell("Body", "body");
    const code = document.createElement("code");
    code.textContent = message.body;
    body.append(code);
    row.append(stored, place, words, body);
    rows.prepend(row);
    while (rows.children.length > most) rows.lastElementChild.remove();
  };
  const say = (words) => { state.textContent = words; };

  const source = new EventSource(holder.dataset.events);
  source.onopen = () => say("following");
  source.onerror = () => say("the connection is lost; it is tried again");
  source.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (!paused) return show(message);
    waiting.push(message);
    if (waiting.length > most) waiting.shift();
    say("paused, " + waiting.length + " wait");
  };
  pause.onclick = () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) { waiting.forEach(show); waiting = []; }
    say(paused ? "paused" : "following");
  };
})();
