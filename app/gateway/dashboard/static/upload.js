"use strict";
// Shows the progress of an upload. Without this script the browser sends the same form and shows its own.

function formatSize(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let size = bytes, place = 0;
  while (size >= 1024 && place < units.length - 1) { size /= 1024; place += 1; }
  return `${place ? size.toFixed(1) : size} ${units[place]}`;
}

function describeFailure(text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  const reason = page.querySelector("[role=alert], main .lead");
  return reason ? reason.textContent.trim() : "The upload failed. Try again.";
}

function sendForm(form) {
  const line = form.querySelector("[data-progress]"), button = form.querySelector("button[type=submit]");
  const bar = line.querySelector("progress"), status = line.querySelector("[role=status]");
  const request = new XMLHttpRequest();
  request.upload.addEventListener("progress", (event) => {
    if (!event.lengthComputable) return;
    const percent = Math.floor((100 * event.loaded) / event.total);
    bar.value = percent;
    status.textContent = percent < 100
      ? `${percent} %: ${formatSize(event.loaded)} of ${formatSize(event.total)}`
      : "Sent. The service is storing the file.";
  });
  request.addEventListener("load", () => {
    if (request.status < 400) { // another page, or this one with what was stored
      if (request.responseURL === location.href) location.reload();
      else if (new URL(request.responseURL).pathname === location.pathname) {
        location.replace(request.responseURL);
        location.reload();
      } else location.assign(request.responseURL);
      return;
    }
    status.textContent = describeFailure(request.responseText);
    button.disabled = false;
  });
  request.addEventListener("error", () => {
    status.textContent = "The connection was lost. Try again.";
    button.disabled = false;
  });
  request.open("POST", form.action);
  request.send(new FormData(form));
  line.hidden = false;
  button.disabled = true;
}

for (const form of document.querySelectorAll("form[data-upload]")) {
  form.addEventListener("submit", (event) => {
    const file = form.querySelector("input[type=file]");
    if (!file.files.length) return; // nothing large to send: the browser sends the form itself
    event.preventDefault();
    sendForm(form);
  });
}
