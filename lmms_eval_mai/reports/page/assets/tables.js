// Sorting of the tables by a click on a heading.

function sortableValue(row, column) {
  const cell = row.cells[column];
  const key = cell.dataset.sort;
  if (key === undefined) return cell.textContent.trim();
  return key === "" ? null : Number(key);
}

function compareValues(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Sort a table. Empty cells stay at the end. The first click sorts numbers downwards and texts upwards. */
function sortTable(heading) {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const first = heading.classList.contains("text") ? "ascending" : "descending";
  const other = first === "ascending" ? "descending" : "ascending";
  const order = heading.getAttribute("aria-sort") === first ? other : first;
  for (const each of heading.parentElement.cells) each.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [sortableValue(row, column), row]);
  const isEmpty = (value) => value === null || value === "";
  rows.sort(([a], [b]) => (isEmpty(a) || isEmpty(b) ? isEmpty(a) - isEmpty(b) : sign * compareValues(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

byId("tables").addEventListener("click", (event) => {
  const heading = event.target.closest("th[aria-sort]");
  if (heading !== null) sortTable(heading);
});
