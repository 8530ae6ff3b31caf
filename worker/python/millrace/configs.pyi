# Written by option_stubs.py.
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

from . import _millrace
from .option_info import OptionInfo

def text_of(info: OptionInfo, value: Any) -> str: ...
def nearest_name(name: str, known: Iterable[str], otherwise: str = ...) -> str: ...
def value_of(info: OptionInfo, text: str) -> Union[str, bool, int, float, List[str]]: ...
def options() -> List[OptionInfo]: ...

class JobConfig:
    _options: Dict[str, OptionInfo]
    _set: _millrace.JobOptions
    def __init__(
        self,
        *,
        name: Optional[str] = ...,
        job: Optional[str] = ...,
        workers: Union[str, int, None] = ...,
        workers_min: Union[str, int, None] = ...,
        mode: Optional[str] = ...,
        staleness: Union[str, int, None] = ...,
        quorum: Union[str, int, None] = ...,
        deadline: Union[str, float, None] = ...,
        participants: Union[str, int, None] = ...,
        apply_after_acks: Union[str, int, None] = ...,
        combine: Optional[str] = ...,
        select: Optional[str] = ...,
        reselect: Optional[str] = ...,
        codec_up: Optional[str] = ...,
        codec_down: Optional[str] = ...,
        codec_error: Optional[str] = ...,
        non_finite: Optional[str] = ...,
        unbiased: Union[str, bool, None] = ...,
        momentum: Optional[str] = ...,
        clip: Union[str, float, None] = ...,
        dead_after: Union[str, float, None] = ...,
        heartbeat: Union[str, float, None] = ...,
        exchange_timeout: Union[str, float, None] = ...,
        seed: Union[str, int, None] = ...,
        parts_per_shard: Union[str, int, None] = ...,
        fuse_below: Union[str, int, None] = ...,
        audit: Union[str, bool, None] = ...,
        history: Union[str, bool, None] = ...,
        reproducible: Union[str, bool, None] = ...,
        path: Optional[str] = ...,
        switch_address: Optional[str] = ...,
        switch_job: Union[str, int, None] = ...,
        switch_slots: Union[str, int, None] = ...,
        switch_lanes: Union[str, int, None] = ...,
        switch_packet_bytes: Union[str, int, None] = ...,
        switch_codec: Optional[str] = ...,
        switch_return_after: Union[str, float, None] = ...,
        grid: Optional[str] = ...,
        initial_weights: Optional[str] = ...,
        store: Optional[str] = ...,
        store_begin: Optional[str] = ...,
        recipe: Optional[str] = ...,
    ) -> None: ...
    def text(self, name: str) -> str: ...
    def changed(self) -> Dict[str, str]: ...
    def copy(self) -> "JobConfig": ...
    name: str
    job: str
    workers: int
    workers_min: int
    mode: str
    staleness: int
    quorum: int
    deadline: float
    participants: int
    apply_after_acks: int
    combine: str
    select: str
    reselect: str
    codec_up: str
    codec_down: str
    codec_error: str
    non_finite: str
    unbiased: bool
    momentum: str
    clip: float
    dead_after: float
    heartbeat: float
    exchange_timeout: float
    seed: int
    parts_per_shard: int
    fuse_below: int
    audit: bool
    history: bool
    reproducible: bool
    path: str
    switch_address: str
    switch_job: int
    switch_slots: int
    switch_lanes: int
    switch_packet_bytes: int
    switch_codec: str
    switch_return_after: float
    grid: str
    initial_weights: str
    store: str
    store_begin: str
    recipe: str

class WorkerConfig:
    _options: Dict[str, OptionInfo]
    _set: _millrace.WorkerOptions
    def __init__(
        self,
        *,
        worker: Union[str, int, None] = ...,
        shards: Union[str, Sequence[str], None] = ...,
        servers: Union[str, Sequence[str], None] = ...,
        key_file: Optional[str] = ...,
        key: Optional[str] = ...,
        server_key_file: Optional[str] = ...,
        server_key: Optional[str] = ...,
        rack: Optional[str] = ...,
        switch_key_file: Optional[str] = ...,
        switch_key: Optional[str] = ...,
        connect_timeout: Union[str, float, None] = ...,
        start_timeout: Union[str, float, None] = ...,
        shard_silence: Union[str, float, None] = ...,
        resend_after: Union[str, float, None] = ...,
        reconnect_after_max: Union[str, float, None] = ...,
        link_rate: Union[str, float, None] = ...,
        updates_kept_max: Union[str, int, None] = ...,
        keep_freed_memory: Union[str, bool, None] = ...,
        returns: Union[str, bool, None] = ...,
        load_path: Optional[str] = ...,
        save_path: Optional[str] = ...,
        http: Optional[str] = ...,
        http_tls: Optional[str] = ...,
        http_token_file: Optional[str] = ...,
        http_insecure: Union[str, bool, None] = ...,
    ) -> None: ...
    def text(self, name: str) -> str: ...
    def changed(self) -> Dict[str, str]: ...
    def copy(self) -> "WorkerConfig": ...
    worker: int
    shards: List[str]
    servers: List[str]
    key_file: str
    key: str
    server_key_file: str
    server_key: str
    rack: str
    switch_key_file: str
    switch_key: str
    connect_timeout: float
    start_timeout: float
    shard_silence: float
    resend_after: float
    reconnect_after_max: float
    link_rate: float
    updates_kept_max: int
    keep_freed_memory: bool
    returns: bool
    load_path: str
    save_path: str
    http: str
    http_tls: str
    http_token_file: str
    http_insecure: bool
