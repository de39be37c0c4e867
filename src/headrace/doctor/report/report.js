const record = document.getElementById("record").textContent;

const button = document.getElementById("download");
button.hidden = false;
button.addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([record], { type: "application/json" }));
  link.download = "diagnosis.json";
  link.click();
  URL.revokeObjectURL(link.href);
});

// The last of them that began at or before a time.
const at = (series, key, time) => {
  let low = 0;
  let high = series.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (series[middle][key] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
};

const section = document.getElementById("time");
if (section) {
  const { steps, usage } = JSON.parse(record);
  const start = Number(section.dataset.start);
  const length = Number(section.dataset.end) - start;
  const readout = document.getElementById("readout");
  readout.hidden = false;
  const digits = (value, count) =>
    value.toLocaleString("en", { minimumFractionDigits: count, maximumFractionDigits: count });
  const describe = (time) => {
    const told = [`${digits(time, 1)} s`];
    const step = at(steps, "start", time);
    const found = steps[step];
    if (found && time <= found.start + found.wait + found.compute) {
      told.push(`step ${digits(step + 1, 0)} waits ${digits(1000 * found.wait, 1)} ms`);
      told.push(`computes ${digits(1000 * found.compute, 1)} ms`);
      if (found.device !== null) told.push(`device busy ${digits(1000 * found.device, 1)} ms`);
    }
    const used = usage[at(usage, "time", time)];
    if (used) {
      if (used.phase) told.splice(1, 0, used.phase);
      if (used.gpu !== null) told.push(`GPU ${digits(100 * used.gpu, 0)} %`);
      told.push(`CPU ${digits(used.cpu, 1)} cores`);
      told.push(`disk ${digits(used.disk_read / 1e6, 0)} MB/s`);
      told.push(`memory ${digits(used.memory / 1e9, 1)} GB`);
    }
    return told.join(" · ");
  };
  for (const chart of section.querySelectorAll(".chart")) {
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      for (const cross of section.querySelectorAll(".cross")) {
        cross.setAttribute("x1", `${100 * share}%`);
        cross.setAttribute("x2", `${100 * share}%`);
      }
      readout.textContent = describe(start + share * length);
    });
  }
}
