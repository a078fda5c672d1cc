// A page of operations that is live: the server sends the parts that changed, which replace those with the same id.
"use strict";

(() => {
  const page = () => document.querySelector("[data-live]");
  if (!page() || !window.EventSource) return;
  // Parts that came while a person used the former ones, as HTML by their id.
  const held = new Map();
  let source = null;

  function show(id, html) {
    const old = document.getElementById(id);
    if (!old) return;
    if (old.contains(document.activeElement)) {
      held.set(id, html);
      return;
    }
    held.delete(id);
    const template = document.createElement("template");
    template.innerHTML = html;
    old.replaceWith(template.content);
    // What was followed has ended.
    if (!page()) close();
  }

  function open() {
    if (source || document.hidden || !page()) return;
    source = new EventSource(page().dataset.live);
    source.addEventListener("fragment", (event) => {
      const { id, html } = JSON.parse(event.data);
      show(id, html);
    });
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) delete document.documentElement.dataset.isLive;
    });
    source.addEventListener("open", () => (document.documentElement.dataset.isLive = ""));
  }

  function close() {
    if (source) source.close();
    source = null;
    delete document.documentElement.dataset.isLive;
  }

  // The next element has the focus after this event.
  document.addEventListener("focusout", () => setTimeout(() => [...held].forEach(([id, html]) => show(id, html))));
  // A page that is not seen needs no stream: their number is limited.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
})();
