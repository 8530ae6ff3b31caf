@0xd45cfbdbe33da749;
# The envelope of every message between workers and shards. Normative text: protocol/wire/messages.md; limits: limits.h,
# job_spec.h, frame.h.
#
# Every change of this file raises kProtocolVersion (messages.h; protocol/wire/versions.md); a test fails until that is done.
# Rules of growth: ordinals are never reused and never change their meaning. A reader ignores fields that it does not know, a writer
# leaves fields that are marked reserved at 0. A body that a reader does not know is refused as unsupported. Refuse keeps its
# form in every version, so that any two versions can tell each other why they part.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("millrace::protocol::wire");

struct Envelope {
  job @0 :UInt64;
  epoch @1 :UInt64;
  worker @2 :UInt32;
  shard @3 :UInt32;
  incarnation @4 :UInt64;
  shardIncarnation @5 :UInt64;
  payloadBytes @6 :UInt64;  # size of the payload frame that follows

  union {
    hello @7 :Hello;
    welcome @8 :Welcome;
    refuse @9 :Refuse;
    membershipChange @10 :MembershipChange;
    contribution @11 :Contribution;
    duplicate @12 :Duplicate;
    update @13 :Update;
    stepDecided @14 :StepDecided;
    ack @15 :Ack;
    heartbeat @16 :Heartbeat;
    shardHello @17 :ShardHello;
    thresholdHistogram @18 :ThresholdHistogram;
    goodbye @19 :Goodbye;
    abort @20 :Abort;

    collect @21 :Void;
    state @22 :State;
    fetch @23 :Fetch;
    fetched @24 :Fetched;
    settle @25 :Settle;
    snapshotRequest @26 :SnapshotRequest;
    snapshot @27 :Snapshot;
    synced @28 :Void;
    pull @29 :Pull;
    pulled @30 :Pulled;
    place @31 :Place;
    later @32 :AnyPointer;     # reserved: stands for all that later versions add
  }
}

struct Hello {
  versionMin @0 :UInt32;
  versionMax @1 :UInt32;
  capabilities @2 :UInt64;
  nonce @3 :UInt64;
  layoutHash @4 :UInt64;
  specHash @5 :UInt64;       # XXH3-64 of spec
  shardCount @6 :UInt32;
  software @7 :Text;
  spec @8 :Data;             # job specification, protocol/wire/job_spec.md
  auth @9 :Data;             # reserved
  returns @10 :Bool;         # takes the place of an earlier process of this worker
  hasWeights @11 :Bool;      # can give and take snapshots
}

struct Welcome {
  version @0 :UInt32;
  capabilities @1 :UInt64;
  heartbeatMs @2 :UInt32;
  deadAfterMs @3 :UInt32;
  messageBytesMax @4 :UInt64;
  software @5 :Text;
  membership @6 :Membership;
}

struct Membership {
  job @0 :UInt64;
  epoch @1 :UInt64;
  branches @2 :UInt64;
  started @3 :Bool;
  finished @4 :Bool;
  members @5 :List(Member);  # by worker, strictly ascending
  shards @6 :List(Shard);    # by shard number
  activations @7 :List(Activation);  # by branch, then shard, strictly ascending
  cut @8 :UInt64;
  cutWorker @9 :UInt32;
  left @10 :UInt32;          # workers that have finished and left
  path @11 :UInt8;           # jobs of path switch: 0 a shard decides, 1 the switch
}

struct Activation {
  branch @0 :UInt64;
  parent @1 :UInt64;
  shard @2 :UInt32;
}

struct Member {
  incarnation @0 :UInt64;
  nonce @1 :UInt64;
  worker @2 :UInt32;
  state @3 :UInt8;           # 1 synced, 2 joining
}

struct Shard {
  incarnation @0 :UInt64;
  address @1 :Text;
  datagrams @2 :Text;        # host:port of its aggregator of datagrams
}

struct Refuse {
  code @0 :UInt16;           # ErrorCode
  retry @1 :Bool;
  aboutContribution @2 :Bool;
  part @3 :UInt32;
  step @4 :UInt64;
  sentence @5 :Text;
}

struct MembershipChange {
  membership @0 :Membership;
  decided @1 :List(UInt64);
}

struct Contribution {
  part @0 :UInt32;
  step @1 :UInt64;           # mode asynchronous, here and in Refuse, Duplicate: the contribution's number within the incarnation
  payloadHash @2 :UInt64;    # the checksum in the payload's container
  weight @3 :Float64;
  entered @4 :Float64;       # audit, this and the next: sums over all incarnations of the worker
  lost @5 :Float64;
  again @6 :Bool;            # sent before: its answer, or the step's update, may be lost
  imbalance @7 :Float64;     # audit: mismatch of the worker's account of the part
}

struct Duplicate {
  part @0 :UInt32;
  step @1 :UInt64;
}

struct Contributor {
  incarnation @0 :UInt64;
  worker @1 :UInt32;
  sequence @2 :UInt64;       # mode asynchronous: the contribution's number within the incarnation; else 0
}

struct Update {
  part @0 :UInt32;
  wholeSum @1 :Bool;
  step @2 :UInt64;
  decidedIn @3 :UInt64;
  weightSum @4 :Float64;
  stable @5 :UInt64;
  contributors @6 :List(Contributor);  # by worker, strictly ascending
  summary @7 :Summary;
  branch @8 :UInt64;
  merged @9 :List(MergedStep);         # none, or 2 and more: the steps whose sum the payload is; `step` is the last
}

struct MergedStep {
  contributor @0 :Contributor;
  weight @1 :Float64;
  identity @2 :UInt64;                 # container_identity() of the payload that the step's own update has
}

struct Summary {
  threshold @0 :Float64;
  workers @1 :List(SummaryEntry);      # by worker, strictly ascending
  epochs @2 :List(SummaryEpoch);       # by epoch, strictly ascending; steps ascending
  logDigest @3 :UInt64;                # of the updates of the steps summarised
}

struct SummaryEntry {
  worker @0 :UInt32;
  incarnation @1 :UInt64;
  lastStep @2 :UInt64;
  countedMask @3 :UInt64;
  entered @4 :Float64;
  carried @5 :Float64;
  earlierIncarnations @6 :List(CountedIncarnation);  # by incarnation, strictly ascending; steps ascending
  lost @7 :Float64;
  sequence @8 :UInt64;       # mode asynchronous: how many of `incarnation` were counted, those numbered below; else 0
}

struct CountedIncarnation {
  incarnation @0 :UInt64;
  lastStep @1 :UInt64;       # mode asynchronous: how many were counted under it
}

struct SummaryEpoch {
  epoch @0 :UInt64;
  firstStep @1 :UInt64;
}

struct StepDecided {
  part @0 :UInt32;
  counted @1 :Bool;
  step @2 :UInt64;
}

struct Ack {
  entries @0 :List(AckEntry);
}

struct AckEntry {
  part @0 :UInt32;
  n @1 :UInt64;
  again @2 :Bool;            # w to s: the update of step n was decided and is not here
}

struct Heartbeat {
  sequence @0 :UInt64;
  stepsApplied @1 :UInt64;
  weightsDigest @2 :UInt64;    # reserved
  waitedFor @3 :List(UInt32);
  decided @4 :List(AckEntry);  # s to w
  finishing @5 :Bool;          # w to s: pushes nothing more
  digests @6 :List(PartDigest);  # w to s
  switchState @7 :UInt8;     # w to s, jobs of path switch: 0 nothing, 1 silent, 2 answers
  switchWait @8 :UInt8;      # w to shard 0, jobs of path switch: the worker is blocked on; 0 not reported
  switchSteps @9 :UInt64;    # ... and how many steps are over there
}

struct PartDigest {
  part @0 :UInt32;
  n @1 :UInt64;
  digest @2 :UInt64;         # of the updates of the steps below n
}

struct ShardHello {
  versionMin @0 :UInt32;
  versionMax @1 :UInt32;
  shardMapHash @2 :UInt64;
  software @3 :Text;
}

struct ThresholdHistogram {
  bucket @0 :UInt32;
  step @1 :UInt64;
  payloadHash @2 :UInt64;    # of the payload, job, bucket and step
}

struct Goodbye {
  reason @0 :UInt8;          # 1 finished, 2 shutdown, 3 failed
  sentence @1 :Text;
  reach @2 :List(LogReach);  # of a worker that has finished: by shard number
}

struct LogReach {
  steps @0 :UInt64;
  decidedIn @1 :UInt64;
}

struct Abort {
  code @0 :UInt16;           # ErrorCode
  sentence @1 :Text;
}

struct State {
  synced @0 :Bool;
  stranded @1 :Bool;
  parts @2 :List(PartState);           # by part, strictly ascending
}

struct PartState {
  part @0 :UInt32;
  n @1 :UInt64;
  decidedIn @2 :UInt64;
  branch @3 :UInt64;
  retainedFrom @4 :UInt64;
}

struct Fetch {
  part @0 :UInt32;
  firstStep @1 :UInt64;
}

struct Fetched {
  part @0 :UInt32;
  n @1 :UInt64;
  decidedIn @2 :UInt64;
  summary @3 :Summary;
}

struct Settle {
  part @0 :UInt32;
  onLog @1 :Bool;
  weights @2 :UInt8;         # 1 own, 2 snapshot, 3 none
  decided @3 :UInt64;
  branch @4 :UInt64;
  counted @5 :SummaryEntry;  # null: nothing ever
}

struct SnapshotRequest {
  forWorker @0 :UInt32;
  forIncarnation @1 :UInt64;
  parts @2 :List(UInt32);    # strictly ascending
}

struct Snapshot {
  part @0 :UInt32;
  forWorker @1 :UInt32;
  forIncarnation @2 :UInt64;
  n @3 :UInt64;
  decidedIn @4 :UInt64;
  offset @5 :UInt64;
  payloadHash @6 :UInt64;    # XXH3-64 of the payload
  summary @7 :Summary;
}

struct Pull {
  id @0 :UInt64;
  part @1 :UInt32;
  indices @2 :UInt32;        # in the payload, u32 each; 0: the range
  atLeast @3 :UInt64;
  offset @4 :UInt64;
  count @5 :UInt64;
  run @6 :UInt32;            # entries from each index on; 0: the index alone
}

struct Pulled {
  id @0 :UInt64;
  part @1 :UInt32;
  values @2 :UInt32;         # in the payload, f32 each
  n @3 :UInt64;
  payloadHash @4 :UInt64;    # XXH3-64 of the payload
  code @5 :UInt16;           # ErrorCode; 0: none
  sentence @6 :Text;
}

struct Place {
  part @0 :UInt32;
  offset @1 :UInt64;
  payloadHash @2 :UInt64;    # XXH3-64 of the payload
}
