const button = document.getElementById("download");
button.hidden = false;
button.addEventListener("click", () => {
  const link = document.createElement("a");
  const record = document.getElementById("record").textContent;
  link.href = URL.createObjectURL(new Blob([record], { type: "application/json" }));
  link.download = "diagnosis.json";
  link.click();
  URL.revokeObjectURL(link.href);
});
