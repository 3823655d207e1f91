// mqtt.js as applications use it: subscribe and publish without waiting. Prints, as JSON, how many of its own messages came
// back, how many answers came that another client gave, and what both clients got of mixed QoS, in order.
// Run by test_order.py with the folder of node_modules as the working directory.
import { createRequire } from "node:module";

const mqtt = createRequire(process.cwd() + "/")("mqtt");
const [askerUrl, askerId, responderUrl, responderId, qosText] = process.argv.slice(2);
const ROUNDS = 20;
const DEADLINE_MS = 20_000;
const qos = Number(qosText);

const open = (url, clientId) => mqtt.connectAsync(url, { clientId, reconnectPeriod: 0 });
const asker = await open(askerUrl, askerId);
const responder = await open(responderUrl, responderId);
const heard = { own: 0, answers: 0, asker: [], responder: [] };

responder.on("message", (topic, payload) => {
  if (topic === "mixed") heard.responder.push(payload.toString());
  else responder.publish(topic.replace("ask", "answer"), payload, { qos });
});
await responder.subscribeAsync(["ask/+", "mixed"], { qos });

asker.on("message", (topic, payload) => {
  if (topic === "mixed") heard.asker.push(payload.toString());
  else if (topic.startsWith("own/")) heard.own += 1;
  else heard.answers += 1;
});
for (let round = 0; round < ROUNDS; round += 1) {
  asker.subscribe(`own/${round}`, { qos });
  asker.publish(`own/${round}`, "x", { qos });
  asker.subscribe(`answer/${round}`, { qos });
  asker.publish(`ask/${round}`, "x", { qos });
}
asker.subscribe("mixed", { qos: 1 });
for (let number = 0; number < ROUNDS; number += 1) asker.publish("mixed", String(number), { qos: number % 3 });

const until = Date.now() + DEADLINE_MS;
const all = () => heard.own + heard.answers + heard.asker.length + heard.responder.length === 4 * ROUNDS;
while (!all() && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 10));
await asker.endAsync();
await responder.endAsync();
console.log(JSON.stringify(heard));
