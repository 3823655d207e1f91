# headrace workshop. `make` prints this list; everything runs from a clean clone, nothing needs to be activated.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
SIZE ?= full
CRASHES ?= 100000
SHARDS ?= 3
SIEGE ?= 600
ROUNDS ?= 200
KILLS ?= 20
SHARE ?= 1/4
HISTORIES ?= 2000
PACKETS ?= 20000
SEED ?= 1
RUNS ?= 5
DURATION ?= 3600
ROWS ?=
QUICK ?=
PEER ?=
SENDERS ?=
READERS ?=
RESULT ?=

CLIENTS ?=

.PHONY: help setup deb wheels site test check unit spark spark-deep deep fuzz demo bench bench-spark bench-neighbours bench-frames bench-shards bench-curves bench-stores soak counts torture \
	torture-workers torture-faults torture-clock torture-spark bucket cluster hdfs readers s3 clean

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## system packages, .venv, the Delta jars and the compiled headrace: leaves a working .venv/bin/headrace
	@workshop/setup.sh

test:  ## format, lint, types, import rules, every test in both builds, the Spark tests, a small demo
	@workshop/setup.sh tools
	@workshop/test.sh

deb: setup  ## a Debian package in dist/: the broker, its service, man pages and completions, for this machine's Python
	@workshop/deb.sh dist

wheels: setup  ## what a release uploads, in dist/: sdist, pure wheel, a compiled one for each Python of 3.11 to 3.13 that is here
	@workshop/wheels.sh dist

site: setup  ## the documents as a site in build/site/html; fails when a link leads nowhere
	@workshop/site.sh

check: setup  ## format, lint, types and import rules only
	@workshop/test.sh check

unit: setup  ## the tests that need neither Spark nor the compiled build, interpreted
	@workshop/test.sh interpreted

spark: setup  ## the Spark tests only
	@workshop/test.sh spark

spark-deep: setup  ## Spark tests that the gate leaves out: what it looks for, at more places
	@workshop/test.sh spark-deep

deep: setup  ## all tests that the gate leaves out, of brokers and of Spark
	@workshop/test.sh deep

fuzz: setup  ## mutated packets against a running broker (PACKETS=100000 SEED=7: more of them, others)
	@HEADRACE_FUZZ_PACKETS=$(PACKETS) HEADRACE_FUZZ_SEED=$(SEED) $(PY) -m pytest tests/fuzz

demo: setup  ## this machine as a fleet of MQTT devices, through kill -9 into a Delta table (SIZE=small: a tenth)
	@$(PY) -m demo --size $(SIZE)

bench: setup  ## the table beside Debian's mosquitto and a bare echo in C (QUICK=1, RUNS=3, ROWS=w16,tls, PEER=name=host:port,pid=N)
	@$(PY) -m benchmarks.table --runs $(RUNS) --only "$(ROWS)" $(if $(QUICK),--quick) $(foreach peer,$(PEER),--peer "$(peer)")

bench-spark: setup  ## the Spark pipeline: archive beside Spark's Kafka source, on the disk and into a bucket, selective reads, live, clean + metrics
	@$(PY) -m benchmarks.spark_source archive
	@PYTHONPATH=tests $(PY) -m benchmarks.spark_source bucket
	@$(PY) -m benchmarks.spark_source skip
	@$(PY) -m benchmarks.spark_live
	@$(PY) -m benchmarks.spark_jobs
	@$(PY) -m benchmarks.spark_jobs --sessions 1000000 --rounds 2
	@$(PY) -m benchmarks.session_state
	@$(PY) -m benchmarks.spark_chart

bench-neighbours: setup  ## what one client can do to two others: every flood, and a disk that hangs, in 25 minutes (QUICK=1, ROWS=pubrel,wills)
	@$(PY) -m benchmarks.neighbours $(if $(QUICK),--quick,$(if $(ROWS),,--record)) --only "$(ROWS)"

bench-frames: setup  ## thousands of devices at once over frames, beside ActiveMQ Classic and a plain server, in 12 minutes (SENDERS=2000: fewer)
	@$(PY) -m benchmarks.frames $(if $(SENDERS),--most $(SENDERS) --rounds 1,--record)

bench-shards: setup  ## CPU time a message with two, four and eight workers beside one, in 15 minutes (ROWS=apart-w1,shared)
	@$(PY) -m benchmarks.shards $(if $(ROWS),--only "$(ROWS)",--record)

bench-curves: setup  ## what one more costs, from ten to a million of everything, and where a cliff is (QUICK=1, ROWS=topics,members)
	@$(PY) -m benchmarks.curves $(if $(QUICK),--most 10000,$(if $(ROWS),,--record)) --only "$(ROWS)"

bench-stores: setup  ## what a long backlog in Redis costs and how fast it comes back, in five minutes (CLIENTS=1000; STORE=hbase, STORE=kafka)
	@PYTHONPATH=tests $(PY) -m benchmarks.$(if $(STORE),far_stores $(STORE),stores) $(if $(CLIENTS),--clients $(CLIENTS),--record)

soak: setup  ## an hour at half load: fails when memory grows or a message is lost (DURATION=600: ten minutes)
	@$(PY) -m benchmarks.soak --duration $(DURATION)

counts: setup  ## instructions per message by callgrind, written down as what `make test` compares with
	@$(PY) -m benchmarks.instructions --record

torture: setup torture-clock torture-faults torture-workers  ## 100 000 simulated crashes, 200 SIGKILLs, the clock set, every system call failed, workers (CRASHES=, SHARDS=4, ROUNDS=, SHARE=1/50, SEED=)
	@PYTHONPATH=tests $(PY) -m faults.model.history --crashes $(CRASHES) --from $(SEED)
	@PYTHONPATH=tests $(PY) -m faults.model.shard_history --shards $(SHARDS) --crashes $(CRASHES) --from $(SEED)
	@PYTHONPATH=tests $(PY) -m faults.model.kafka_history --histories $(HISTORIES) --from $(SEED)
	@PYTHONPATH=tests $(PY) -m faults.model.group_history --histories $(HISTORIES) --from $(SEED)
	@PYTHONPATH=tests HEADRACE_BUILD=compiled $(PY) -m faults.model.kill_rounds --rounds $(ROUNDS) --seed $(SEED)

torture-workers: setup  ## workers of a node are killed and stopped under load, for ten minutes (SHARDS=4: as many workers, SIEGE=60: seconds, SEED=)
	@PYTHONPATH=tests HEADRACE_BUILD=compiled $(PY) -m faults.workers.rounds --shards $(SHARDS) --seconds $(SIEGE) --seed $(SEED)

torture-faults: setup  ## system calls of a running broker fail, a quarter of all places in 20 minutes (SHARE=1: all, SEED=)
	@PYTHONPATH=tests HEADRACE_BUILD=compiled $(PY) -m faults.broker.every_call --share $(SHARE) --seed $(SEED)

torture-clock: setup  ## the clock is set by seconds, hours and years, and the process stands still (HISTORIES=, SEED=)
	@PYTHONPATH=tests $(PY) -m faults.model.history --jumps --crashes $(HISTORIES) --from $(SEED)
	@PYTHONPATH=tests HEADRACE_BUILD=compiled $(PY) -m faults.broker.clock_and_stops

torture-spark: setup  ## 20 SIGKILLs to the broker and to Spark jobs, and every file of a lake deleted, emptied, put back, swapped (KILLS=, SEED=)
	@PYTHONPATH=tests $(PY) -m faults.pipeline.rounds --kills $(KILLS) --seed $(SEED)
	@PYTHONPATH=tests $(PY) -m faults.pipeline.leftovers --seed $(SEED)

bucket: setup  ## a lake behind a real S3 server: drivers killed, stopped and doubled, a server that answers 503, a restored bucket
	@PYTHONPATH=$(CURDIR)/src:tests $(PY) -m faults.pipeline.bucket

hdfs: setup  ## a lake in HDFS: a namenode and a datanode of Maven Central, 105 MB; four jobs and status
	@PYTHONPATH=$(CURDIR)/src:tests $(PY) -m faults.pipeline.hdfs

cluster: setup  ## every job on a standalone Spark cluster, a worker killed in the middle, by `run` and by `submit`
	@PYTHONPATH=$(CURDIR)/src:tests $(PY) -m faults.pipeline.cluster

readers: setup  ## every table as Spark, delta-rs, DuckDB and Trino read it, which needs JAVA_HOME=a JDK of 24 or later (READERS=spark,duckdb: these; RESULT=benchmarks/results/readers.json: what the page of readers is made from)
	@READERS=$(READERS) PYTHONPATH=$(CURDIR)/src:tests $(PY) -m faults.pipeline.readers $(RESULT)

s3: setup  ## an S3 server with the bucket `lake` in memory at http://127.0.0.1:9090, until Ctrl-C
	@PYTHONPATH=src:tests $(PY) -m spark.s3_server

clean:  ## remove what builds and runs left behind; keeps .venv
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo/out
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
