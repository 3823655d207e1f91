// mqtt.js against a broker: connect over `url`, subscribe, publish what comes back, at each QoS and version. Prints "ok".
// Run by test_mqttjs.py with the folder of node_modules as the working directory.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const mqtt = createRequire(process.cwd() + "/")("mqtt");
const [url, ca] = process.argv.slice(2);
const payloads = ["", "small", "m".repeat(5_000), "l".repeat(300_000)];

async function exchange(protocolVersion) {
  const client = await mqtt.connectAsync(url, {
    protocolVersion,
    clientId: `mqttjs-${protocolVersion}`,
    ca: ca ? readFileSync(ca) : undefined,
    reconnectPeriod: 0,
    will: { topic: "mqttjs/will", payload: "gone", qos: 1, retain: false },
  });
  const topic = `mqttjs/${protocolVersion}`;
  const got = [];
  const all = new Promise((resolve) => {
    client.on("message", (_, payload) => {
      got.push(payload.toString());
      if (got.length === 3 * payloads.length) resolve();
    });
  });
  await client.subscribeAsync(topic, { qos: 2 });
  for (const qos of [0, 1, 2]) {
    await Promise.all(payloads.map((payload) => client.publishAsync(topic, payload, { qos })));
  }
  await all;
  const want = [0, 1, 2].flatMap(() => payloads);
  const same = JSON.stringify([...got].sort()) === JSON.stringify(want.sort());
  await client.endAsync();
  if (!same) throw new Error(`got ${got.map((one) => one.length)}`);
}

for (const version of [4, 5]) await exchange(version);
console.log("ok");
