"use strict";

// Asks for the page again when the service says that it has changed, and puts the new content in its place.
// The page is complete without this.

(() => {
  const SECONDS = 2; // from one asking to the next, at least
  let busy = false;
  let asked = 0;
  let wanted = null;
  let stream = null;

  const content = () => document.getElementById("content");
  const say = (text) => {
    const live = document.getElementById("live");
    if (live.textContent !== text) live.textContent = text;
  };

  function ago(seconds) {
    if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
    if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
    return `${Math.round(seconds / 86400)} days ago`;
  }

  function tellAges() {
    for (const one of document.querySelectorAll("time[datetime]")) {
      const seconds = (Date.now() - Date.parse(one.dateTime)) / 1000;
      if (Number.isFinite(seconds) && seconds > -60) one.dataset.ago = `(${ago(seconds)})`;
    }
  }

  function put(page) {
    const fresh = page && page.getElementById("content");
    if (!fresh) return;
    for (const one of content().querySelectorAll("details[open][id]")) {
      const same = fresh.querySelector(`#${CSS.escape(one.id)}`);
      if (same) same.open = true;
    }
    const wide = [...content().querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const focused = document.activeElement;
    const at = focused && content().contains(focused) ? focused.closest("[id]") : null;
    content().replaceWith(document.adoptNode(fresh));
    [...content().querySelectorAll(".scroll")].forEach((one, at) => (one.scrollLeft = wide[at] || 0));
    if (at && at.id !== "content") {
      const same = document.getElementById(at.id);
      if (same) (same.querySelector("summary, a, [tabindex]") || same).focus({ preventScroll: true });
    }
    tellAges();
  }

  function refresh() {
    if (busy || wanted === null || wanted === content().dataset.mark || document.hidden) return;
    const wait = asked + SECONDS * 1000 - Date.now();
    if (wait > 0 || !document.getSelection().isCollapsed) {
      window.setTimeout(refresh, Math.max(wait, 500)); // what somebody marks to copy stays
      return;
    }
    busy = true;
    asked = Date.now();
    const request = new XMLHttpRequest();
    request.open("GET", window.location.href);
    request.responseType = "document";
    request.timeout = 20000;
    request.onload = () => {
      if (request.status === 200) put(request.response);
    };
    request.onloadend = () => {
      busy = false;
      window.setTimeout(refresh, SECONDS * 1000);
    };
    request.send();
  }

  function listen() {
    stream = new EventSource(content().dataset.stream);
    stream.onopen = () => say("live");
    stream.onerror = () => {
      say("not connected");
      // The browser itself comes back where the connection broke, not where it was refused.
      if (stream.readyState === EventSource.CLOSED) window.setTimeout(listen, 15000);
    };
    stream.onmessage = (event) => {
      wanted = event.data;
      refresh();
    };
  }

  listen();
  document.addEventListener("visibilitychange", refresh);
  window.addEventListener("pagehide", () => stream.close());
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) listen();
  });
  window.setInterval(tellAges, 5000);
  tellAges();
})();
