"""The journal: every record that must survive, in one sequence of segment files with one writer.

| file | what it is |
|---|---|
| `log.py` | `SegmentedLog`, the one writer: open, append, read, retention, close |
| `writer.py` | the threads that write: group commit |
| `active.py` | the segment being written |
| `reserve.py` | space kept back for a full disk |
| `recovery.py`, `sealed.py`, `tail.py` | what opening finds: how far the records reach, what is cut, what is refused |
| `catalog.py` | the segments of the open log and reading by offset |
| `retention.py` | which segments may go, and who holds which |
| `compaction.py` | segments without the records that nobody refers to any more |
| `segment.py`, `walk.py`, `index.py` | the bytes of a segment, walking them, finding a place in them |
| `watermark.py` | the published high watermark |
| `reader.py`, `consumers.py` | the read side for other processes; positions of registered consumers |
| `snapshot.py` | files with the state at an offset, or with what changed up to it |
| `inspect.py`, `damage.py`, `repair.py` | verify and dump; what is damaged; making it readable again |
| `backup.py` | backup and restore |
| `lock.py`, `disk.py`, `errors.py` | one writer at a time; system calls behind one injectable class; what can go wrong |

Offsets count records and are "next" offsets: a high watermark H says that every record with an offset below H
is durable. The read side imports nothing beyond the standard library, because it runs in Spark workers too.
"""

from __future__ import annotations
