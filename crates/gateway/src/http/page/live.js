// Fetches the state again and again. Without this script, the browser reloads the page.
"use strict";

const PAUSE_MS = 3000;
const LIMIT_MS = 10000;

const state = document.getElementById("state");
const old = document.getElementById("old");

// Times are told as "5 min ago"; who wants to know more sees the local time.
function addTimes() {
  for (const time of state.querySelectorAll("[data-ms]")) {
    const ms = Number(time.dataset.ms);
    if (ms > 0) time.title = new Date(ms).toLocaleString();
  }
}

// What is open stays open, and what has the focus keeps it.
function show(text) {
  const open = Array.from(state.querySelectorAll("details[open]"), (details) => details.id);
  const focused = document.activeElement?.closest("details")?.id;
  // The gateway has escaped all that is not its own markup, and the page's policy lets no script in it run.
  state.innerHTML = text;
  state.dataset.looks = 1 + Number(state.dataset.looks || 0);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.querySelector("summary")?.focus({ preventScroll: true });
  addTimes();
}

async function look() {
  // Nobody sees it, or somebody is about to copy a part of it.
  if (!document.hidden && getSelection().isCollapsed) {
    try {
      const answer = await fetch("page/state", { cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      show(await answer.text());
      old.hidden = true;
    } catch (error) {
      if (old.hidden) old.textContent = `Not live since ${new Date().toLocaleTimeString()}: ${error.message}`;
      old.hidden = false;
    }
  }
  setTimeout(look, PAUSE_MS);
}

addTimes();
setTimeout(look, PAUSE_MS);
