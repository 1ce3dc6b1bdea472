"use strict";
// Shows the print button. Without this script, use the browser's own print command.
for (const button of document.querySelectorAll("[data-print]")) {
  button.hidden = false;
  button.addEventListener("click", () => print());
}
