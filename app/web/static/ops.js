// A page of operations that is live: the server sends the parts that changed, which replace those with the same id.
"use strict";

(() => {
  const page = document.querySelector("[data-live]");
  if (!page || !window.EventSource) return;
  let source = null;

  function open() {
    if (source || document.hidden) return;
    source = new EventSource(page.dataset.live);
    source.addEventListener("fragment", (event) => {
      const { id, html } = JSON.parse(event.data);
      const old = document.getElementById(id);
      // A part that a person is using stays as it is.
      if (!old || old.contains(document.activeElement)) return;
      const template = document.createElement("template");
      template.innerHTML = html;
      old.replaceWith(template.content);
    });
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) page.removeAttribute("data-is-live");
    });
    source.addEventListener("open", () => page.setAttribute("data-is-live", ""));
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  // A page that is not seen needs no stream: their number is limited.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
})();
