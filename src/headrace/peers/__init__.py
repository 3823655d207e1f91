"""The other workers of a node: links to them, and the streams, connections and questions that go over these."""
