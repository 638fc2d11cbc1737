// The title and the facts that `go-opt optimize` prints.

function showHead() {
  document.title = `${data.title}: a plan of go-opt`;
  byId("title").textContent = data.title;
  byId("summary").textContent = data.summary;
  data.facts.forEach((fact, i) => {
    byId("facts").append(
      make("div", { class: i === 0 ? "lead" : "" },
        make("dt", {}, fact.label),
        make("dd", { class: "value" }, fact.value),
        fact.note ? make("dd", { class: "aside" }, fact.note) : null),
    );
  });
}
