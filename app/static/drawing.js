// Draws an answer of any kind on a canvas.

async function bitmapOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return createImageBitmap(new Blob([bytes], { type: "image/png" }));
}

function fit(canvas, width, height) {
  canvas.width = width;
  canvas.height = height;
  return canvas.getContext("2d");
}

function drawPoints(canvas, bitmap, result) {
  const context = fit(canvas, bitmap.width, bitmap.height);
  context.globalAlpha = 0.55;
  context.drawImage(bitmap, 0, 0);
  context.globalAlpha = 1;
  context.strokeStyle = "#e85d04";
  context.lineWidth = Math.max(1, bitmap.width / 500);
  const least = Math.max(2, bitmap.width / 160);
  result.x.forEach((x, index) => {
    const radius = Math.max(least, (result.size?.[index] ?? 0) / 2);
    const y = result.y[index];
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    const degrees = result.angle?.[index];
    if (degrees !== undefined && degrees >= 0) {
      context.moveTo(x, y);
      context.lineTo(x + radius * Math.cos(degrees * Math.PI / 180), y + radius * Math.sin(degrees * Math.PI / 180));
    }
    context.stroke();
  });
}

function drawBars(canvas, counts) {
  const context = fit(canvas, 640, 320);
  const colors = { red: "#d00000", green: "#2d9d3a", blue: "#1d5fd0" };
  context.globalAlpha = 0.6;
  for (const [channel, values] of Object.entries(counts)) {
    const most = Math.max(...values, 1);
    const step = canvas.width / values.length;
    context.fillStyle = colors[channel] ?? "#14213d";
    values.forEach((count, bin) => {
      const height = count / most * (canvas.height - 4);
      context.fillRect(bin * step, canvas.height - height, Math.max(step - 0.5, 0.5), height);
    });
  }
}

function drawText(canvas, lines) {
  const context = fit(canvas, 640, 320);
  context.fillStyle = "#14213d";
  context.font = "20px system-ui, sans-serif";
  lines.forEach((line, index) => context.fillText(line, 20, 40 + 28 * index));
}

// Draws the answer's result; `blob` is the picture that was sent, drawn below keypoints.
export async function drawAnswer(canvas, answer, blob) {
  const { result } = answer;
  const encoded = result.image ?? result.mask;
  if (encoded) {
    const bitmap = await bitmapOf(encoded.data);
    fit(canvas, bitmap.width, bitmap.height).drawImage(bitmap, 0, 0);
  } else if (result.kind === "keypoints") {
    drawPoints(canvas, await createImageBitmap(blob), result);
  } else if (result.kind === "histogram") {
    drawBars(canvas, result.counts);
  } else if (result.kind === "descriptor") {
    drawText(canvas, [`${result.dtype} [${result.shape.join(", ")}]`, "Values are in the JSON below."]);
  } else {
    drawText(canvas, Object.entries(result).map(([name, value]) => `${name}: ${typeof value === "object" ? "..." : value}`));
  }
}
