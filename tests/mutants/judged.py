"""What people found out about mutants that no test caught."""

from __future__ import annotations

from collections.abc import Mapping

_BATON = "services/baton"
EQUIVALENT: Mapping[str, str] = {
    f"{_BATON}/decode/kv_stream/reader.py:KvStreamReader.__init__: False -> True": "the layout, which comes before "
    "any frame, sets it",
    f"{_BATON}/engine/scheduling/admission.py:BatchAdmission._note: self._limits.shares_prompts and not "
    "self._states and sequence.is_shareable and sequence.is_prefilling -> "
    "(self._limits.shares_prompts and sequence.is_shareable and sequence.is_prefilling)": "where there are states "
    "nobody asks for what was noted",
    f"{_BATON}/engine/scheduling/in_flight.py:InFlightPrefixes.reusable_prefix: sequence.awaited is not None and "
    "self._is_pending(sequence.awaited, sequence) -> self._is_pending(sequence.awaited, sequence)": "no block has the "
    "hash None, so that none is pending",
    f"{_BATON}/engine/runners/base.py:BlockCopies.blocks: True -> False": "keys and values have as many blocks each",
    f"{_BATON}/kv/numpy_codec.py:_tiles: _TILE_ELEMENTS // head_dim -> (_TILE_ELEMENTS * head_dim)": "a row is packed "
    "by itself, however many are at once",
    f"{_BATON}/security/tls.py:TlsSettings.tls_identity: self.tls_cert_file is None or self.tls_key_file "
    "is None or self.tls_ca_file is None -> (self.tls_key_file is None or self.tls_ca_file is "
    "None)": "settings with some of the three files are refused before",
    f"{_BATON}/decode/kv_stream/remote_prefill.py:RemotePrefill._request_for: 1 -> 0": "who has all positions asks "
    "nobody for more",
    f"{_BATON}/engine/scheduling/step.py:Step.add_decoding: sequence.scoring is not None -> (sequence.scoring is "
    "None)": "`add` comes to the same in more time, and a prompt's last position judges none of its tokens",
    f"{_BATON}/engine/scheduling/step.py:Step.members: not self.admitted and not self.duplicates and not "
    "self.swaps.ins -> (not self.admitted and (not self.swaps.ins))": "who takes over what another computes is "
    "admitted in that pass",
    f"{_BATON}/engine/kv_cache/disk_tier.py:DiskTier._split: True -> False": "there are as many halves of keys as of "
    "values",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler.__init__: -1 -> 1": "no pass has been planned yet, and an "
    "empty one cannot be repeated",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler._budget: 1 -> 0": "a prompt that is alone delays nobody, "
    "whatever its pass takes besides",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler._budget: num_prompts and target_seconds and step.spans -> "
    "(num_prompts or target_seconds or step.spans)": "what depends on any of them asks for it again",
    f"{_BATON}/decode/kv_stream/reader.py:_is_cancelled: task is not None and task.cancelling() > 0 -> "
    "(task.cancelling() > 0)": "nobody asks outside a task",
    f"{_BATON}/kv_transport/kv_services.py:add_block_service: 1 -> 0": "all messages of protobuf are serialized by the "
    "same function",
    f"{_BATON}/security/tls.py:PublicCertificate._load: context.minimum_version = ssl.TLSVersion.TLSv1_2 -> "
    "pass": "from Python 3.10 on it is so already",
    f"{_BATON}/security/service_account.py:pod_of: 0 -> 1": "nobody judges a token in the first second of 1970",
    f"{_BATON}/engine/scheduling/step.py:Step._add_sampled: sampled and sampled[-1].sequence.queue_key.arrival > "
    "arrival -> sampled": "what is in order stays so when it is sorted",
    f"{_BATON}/engine/scheduling/step.py:Step._add_sampled: sampled[-1].sequence.queue_key.arrival > arrival -> "
    "(sampled[-1].sequence.queue_key.arrival >= arrival)": "no two come at the same place",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler._budget: num_prompts and target_seconds and step.spans -> "
    "(num_prompts and target_seconds)": "what depends on it asks for it again",
    f"{_BATON}/engine/scheduling/in_flight.py:InFlightPrefixes.reusable_prefix: sequence.awaited = None -> "
    "pass": "who may not share has awaited nothing, and of others it is set below",
    f"{_BATON}/engine/kv_cache/ingest.py:Ingest.run: 0 -> 1": "no piece has a single byte",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler.__init__: 1 -> 2": "no pass has been planned yet, and an "
    "empty one cannot be repeated",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler._reserve_blocks: len(sequence.block_table) * block_tokens -> "
    "(len(sequence.block_table) // block_tokens)": "who has its blocks gets no more of them, only later",
    f"{_BATON}/engine/scheduling/step.py:SequenceProgress.lengthen: 2 -> 1": "a pass is one pass already, and has its "
    "blocks",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler._reserve_blocks: num_ahead and sequence.num_outputs_left <= 0 "
    "-> (sequence.num_outputs_left <= 0)": "who has all of its output, and nothing on the way, runs no more",
    f"{_BATON}/engine/kv_cache/ingest.py:Ingest.write_beside: 0 -> 1": "no piece has a single byte",
}
"""Why a mutant does what the module does, by its name."""

SURVIVED: Mapping[str, str] = {
    f"{_BATON}/engine/scheduling/admission.py:BatchAdmission.newcomer_tokens: 0 -> 1": "test_order.py::"
    "test_a_short_newcomer_has_room_beside_a_long_prompt_where_one_place_is_left",
    f"{_BATON}/engine/scheduling/turns.py:TenantTurns._cost: 0 -> 1": "test_turns.py::"
    "test_a_prompt_that_another_node_computes_costs_its_output_alone",
    f"{_BATON}/engine/kv_cache/offload.py"
    ":Offload.drain: min(max_blocks, AHEAD_BLOCKS) - len(spare) -> (min(max_blocks, A"
    "HEAD_BLOCKS) + len(spare))": "test_offload.py::test_no_more_go_along_than_are_copied_at_once",
    f"{_BATON}/engine/kv_cache/pool_size.py"
    ":_num_state_slots: max(0, memory.free_bytes - bounds.beside_bytes) -> min(0, mem"
    "ory.free_bytes - bounds.beside_bytes)": "test_pool_size.py::test_states_have_a_quarter_of_what_a_pool_may_have",
    f"{_BATON}/engine/kv_cache/ingest.py"
    ":GapBudget.affordable_bytes: self._left_seconds - cost.fixed_seconds -> (self._l"
    "eft_seconds + cost.fixed_seconds)": "test_gap_budget.py::test_what_every_piece_takes_comes_off_the_gap",
    f"{_BATON}/kv/kv_format.py"
    ":is_kept_exactly: holds_exactly(dtype, sender) and holds_exactly(receiver, dtype"
    ") -> holds_exactly(dtype, sender)": "test_kv_format.py::test_numbers_are_kept_where_no_step_rounds_them",
    f"{_BATON}/decode/kv_stream/reader.py"
    ':KvStreamReader._take_element: raise StreamBrokenError(f"{element} came out of o'
    'rder") -> pass': "test_block_pull.py::test_no_damage_makes_a_wrong_token[with_an_empty_message]",
    f"{_BATON}/gateway/access/tenants.py"
    ":Places.hold: del self._taken[key.name], self._weights[key.name] -> pass": "test_places.py::"
    "test_a_tenant_that_has_nothing_in_work_has_no_share",
    f"{_BATON}/gateway/access/admission.py"
    ":Admission.slot.begin: num_generations > 1 -> (num_generations <= 1)": "test_places.py::"
    "test_a_request_has_a_place_for_each_of_its_choices",
    f"{_BATON}/gateway/access/api_keys.py:ApiKeys.load: self._stamp = _stamp(self._path) -> pass": "test_api_keys.py::"
    "test_a_file_that_has_not_changed_is_not_read_again",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler.note_pass: step.sequences if step.is_alone else () -> (() if "
    "step.is_alone else step.sequences)": "test_turns.py::"
    "test_a_suspect_shares_passes_again_when_it_is_beyond_its_first_tokens",
    f"{_BATON}/engine/scheduling/step.py:Step.members: not self.admitted and not self.duplicates and not "
    "self.swaps.ins -> (not self.duplicates and (not self.swaps.ins))": "test_scheduler.py::"
    "test_an_export_that_begins_beside_a_full_pass_fails_with_it",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler._reserve_blocks: sequence.phase is not Phase.RUNNING or "
    "(num_ahead and sequence.num_outputs_left <= 0) -> (sequence.phase is not Phase.RUNNING)": "test_scheduler.py::"
    "test_nobody_gives_up_blocks_for_a_token_that_never_comes",
    f"{_BATON}/engine/kv_cache/block_reads.py:BlockReads.add: self._budget.note_arrival(len(read.hashes) * "
    "sum(map(self._held.block_bytes, read.layers))) -> pass": "test_block_reads.py::"
    "test_a_gap_keeps_up_with_what_has_come_since_the_one_before",
    f"{_BATON}/engine/kv_cache/pool_size.py:choose_pool_size: 1 -> 2": "test_pool_size.py::"
    "test_a_device_with_room_for_one_block_has_it",
    f"{_BATON}/engine/kv_cache/pool_size.py:choose_pool_size: left_bytes < memory.free_bytes -> "
    "(left_bytes <= memory.free_bytes)": "test_pool_size.py::test_a_number_that_does_not_fit_is_refused_by_name",
    f"{_BATON}/engine/kv_cache/offload.py:Offload._is_read_quicker: self._bytes_per_second or math.inf -> "
    "(self._bytes_per_second)": "test_offload.py::"
    "test_blocks_are_read_from_disk_where_that_is_quicker_than_to_compute_them",
    f"{_BATON}/decode/kv_stream/recovery.py:DeadlineGuard.__init__: deadline - LOCAL_MARGIN * rest_seconds() -> "
    "(deadline + LOCAL_MARGIN * rest_seconds())": "test_local_compute.py::"
    "test_a_stream_ends_while_there_is_time_for_the_rest",
    f"{_BATON}/kv/stream.py:_class_bytes: -num_bytes -> num_bytes": "test_staging_pool.py::"
    "test_memory_is_as_large_as_asked_and_little_of_it_lies_unused",
    f"{_BATON}/decode/kv_stream/reader.py:FrameWindow.landed: self._num_bytes -= num_bytes -> pass": "test_reader.py::"
    "test_what_has_landed_is_given_back_once",
    f"{_BATON}/security/tls.py:secured_by: _CURRENT.reset(token) -> pass": "test_tls.py::"
    "test_who_a_process_is_ends_with_its_context",
    f"{_BATON}/security/authority.py:_is_issued_by: False -> True": "test_authority.py::"
    "test_a_node_is_known_by_a_valid_certificate_of_its_own_from_this_authority",
    f"{_BATON}/engine/scheduling/admission.py:BatchAdmission._take_in: self._turns.begin(sequence) -> "
    "pass": "test_turns.py::test_an_output_is_charged_before_it_exists",
    f"{_BATON}/engine/kv_cache/block_copy.py:save_cached: 0 -> 1": "test_block_copy.py::"
    "test_the_cache_is_saved_to_the_last_moment",
    f"{_BATON}/kv_transport/frame_codec.py:_varint: number > 0x7F -> (number >= 127)": "test_frame_codec.py::"
    "test_numbers_are_written_in_as_few_bytes_as_protobuf_needs",
    f"{_BATON}/gateway/access/tenants.py:TenantSalts.id_of: 16 -> 17": "test_tenants.py::"
    "test_nodes_are_told_a_tenant_that_has_no_name_and_its_weight",
    f"{_BATON}/gateway/access/tenants.py:Places.hold: 16 -> 17": "test_places.py::"
    "test_one_long_generation_counts_for_a_sixteenth_of_the_expectation",
    f"{_BATON}/engine/scheduling/admission.py:BatchAdmission.newcomer_tokens: num_slots <= 0 -> (num_slots < "
    "0)": "test_order.py::test_nothing_is_kept_for_a_newcomer_that_gets_no_place",
    f"{_BATON}/engine/kv_cache/block_copy.py:swap_blocks: len(swaps.outs) + sum(len(swap.contents) for swap in "
    "swaps.ins) -> (len(swaps.outs) - sum((len(swap.contents) for swap in swaps.ins)))": "test_block_copy.py::"
    "test_copies_both_ways_count",
    f"{_BATON}/kv_transport/fast_channel.py:FastStream.close: True -> False": "test_kv_services.py::"
    "test_what_comes_after_the_end_of_a_stream_is_not_kept",
    f"{_BATON}/kv_transport/fast_channel.py:_cancel_made: not making.cancelled() and making.exception() is None -> (no"
    "t making.cancelled() or making.exception() is None)": "test_kv_services.py::"
    "test_a_call_that_failed_after_its_asker_had_gone_is_nobodys_error",
    f"{_BATON}/decode/kv_stream/receive_budget.py:ReceiveBudget.frames_of: wanted.chunk_tokens or most_tokens -> "
    "(wanted.chunk_tokens)": "test_receive_budget.py::"
    "test_where_any_number_of_positions_is_wanted_as_many_are_as_fit_into_a_frame",
    f"{_BATON}/decode/kv_stream/block_pull.py"
    ':BlockPull._promise: raise StreamBrokenError(f"the node promises '
    '{message.block_count} of {self._num_wanted} blocks") -> pass': "test_block_pull.py::"
    "test_of_a_node_that_promises_other_blocks_than_were_asked_for_nothing_is_taken",
    f"{_BATON}/decode/kv_stream/remote_prefill.py:RemotePrefill._local_seconds: 1 -> 0": "none: the line is gone, "
    "as the time of one position is lost in that of reading the weights",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler.invalidate_cache: self.states.forget([sequence]) -> "
    "pass": "test_states.py::test_what_spoiled_logits_came_from_is_in_no_cache_any_more",
    f"{_BATON}/engine/scheduling/step.py:Step.again: self.num_tokens * self.num_passes -> (self.num_tokens // "
    "self.num_passes)": "test_step.py::test_a_batch_that_goes_on_is_planned_where_it_is_then",
    f"{_BATON}/decode/kv_stream/receive_budget.py:ReceiveBudget.take: turn.done() and not turn.cancelled() -> "
    "(turn.done() or not turn.cancelled())": "test_receive_budget.py::"
    "test_who_goes_while_it_waits_for_credit_takes_none_and_gives_none",
    f"{_BATON}/kv_transport/kv_services.py:KvStub.__init__: super().__init__(channel) -> pass": "test_link_probe.py::"
    "test_a_link_is_measured_by_the_service_that_is_there",
    f"{_BATON}/security/authority.py:Authority.sign: False -> True": "test_authority.py::"
    "test_what_is_signed_can_be_read_by_who_does_not_know_all_of_it",
    f"{_BATON}/engine/scheduling/step.py:SequenceProgress.enter: True -> False": "test_step.py::"
    "test_a_pass_brings_each_of_its_sequences_a_token_and_no_other",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler.note_pass: seconds > 0.0 -> (seconds >= 0.0)": "test_step.py::"
    "test_a_pass_without_a_duration_says_nothing_of_how_long_blocks_may_be_copied",
    f"{_BATON}/engine/kv_cache/offload.py:Offload.is_reading: restore is not None and restore.has_read -> "
    "(restore is not None)": "test_offload.py::test_who_has_parts_from_host_memory_still_has_the_rest_read_from_disk",
    f"{_BATON}/engine/kv_cache/pool_size.py:_automatic: allowed > memory.free_bytes -> "
    "(allowed >= memory.free_bytes)": "test_pool_size.py::test_a_gpu_is_filled_up_to_its_share",
    f"{_BATON}/kv/kv_format.py:holds_exactly: cache is KvDtype.FLOAT32 and dtype in _FLOATS -> "
    "(cache is KvDtype.FLOAT32)": "test_kv_format.py::test_a_float32_cache_holds_floats_and_no_codes",
    f"{_BATON}/security/tls.py:identity_towards: 0 -> 1": "test_tls.py::"
    "test_loopback_has_no_tls_where_servers_listen_beyond_it_as_well",
    f"{_BATON}/gateway/access/tenants.py:_read: min(len(each.content) for each in secrets) -> "
    "max((len(each.content) for each in secrets))": "test_tenants.py::test_a_secret_must_be_long",
    f"{_BATON}/engine/scheduling/scheduler.py:_is_in_flight: each.num_ahead and each.phase is not Phase.FINISHED -> "
    "(each.num_ahead)": "test_turns.py::test_a_suspect_waits_for_no_token_of_a_client_that_is_gone",
    f"{_BATON}/engine/scheduling/step.py:Step.add: start + 1 -> (start - 1)": "test_step.py::"
    "test_a_position_behind_a_whole_prompt_is_no_prompt",
    f"{_BATON}/engine/kv_cache/offload.py:Offload._take_in: 1 -> 2": "test_offload.py::"
    "test_what_was_read_from_disk_counts_as_found_there_and_no_more",
    f"{_BATON}/decode/kv_stream/block_pull.py:BlockPull.__init__: 1 -> 2": "none: the bound is gone, as all positions "
    "are never cached",
    f"{_BATON}/decode/kv_stream/prefill_stream.py:PrefillReader._take_element: 0 -> 1": "test_generation.py::"
    "test_the_first_token_may_be_the_first_of_the_vocabulary",
    f"{_BATON}/decode/kv_stream/reader.py:MovingTimeout._may_wait: self._timer = loop.call_at(at, self._look) -> "
    "pass": "test_local_compute.py::test_a_stream_that_stops_later_on_ends_at_a_later_moment",
    f"{_BATON}/security/authority.py:write_private: 0o700 -> 449": "test_authority.py::"
    "test_a_key_lies_where_its_owner_alone_finds_it",
    f"{_BATON}/security/access.py:: {{DEPLOYMENT, *(party.value for party in Party)}} -> {{*(party.value for party in "
    "Party)}": "test_access.py::test_a_name_by_which_more_is_allowed_is_no_node_s",
    f"{_BATON}/gateway/access/admission.py:AccessLog._tell_ignored: name not in self._told_fields and "
    "len(self._told_fields) < MAX_TOLD_FIELDS -> (name not in self._told_fields)": "test_access_log.py::"
    "test_names_that_clients_make_up_fill_neither_log_nor_memory",
    f"{_BATON}/engine/scheduling/turns.py:TenantTurns.end: self._mean_output_tokens += (num_outputs - "
    "self._mean_output_tokens) / 16 -> pass": "test_turns.py::test_an_output_is_expected_to_be_as_long_as_those_before",
    f"{_BATON}/engine/scheduling/turns.py:TenantTurns.end: self._mean_output_tokens += (num_outputs - "
    "self._mean_output_tokens) / 16 -> self._mean_output_tokens -= (num_outputs - self._mean_output_tokens) / "
    "16": "test_turns.py::test_an_output_is_expected_to_be_as_long_as_those_before",
    f"{_BATON}/engine/scheduling/turns.py:TenantTurns.end: sequence.is_admitted and sequence.request.purpose is not "
    "Purpose.PREFILL -> (sequence.request.purpose is not Purpose.PREFILL)": "test_turns.py::"
    "test_an_output_is_expected_to_be_as_long_as_those_before",
    f"{_BATON}/engine/scheduling/admission.py:BatchAdmission.admit: continue -> break": "test_turns.py::"
    "test_a_suspect_that_waits_for_its_turn_holds_up_nobody",
    f"{_BATON}/engine/scheduling/step.py:Step.add_decoding: sequence.stats.first_token == 0.0 -> "
    "(sequence.stats.first_token != 0.0)": "test_attribution.py::test_the_last_position_of_a_prompt_is_part_of_it",
    f"{_BATON}/engine/scheduling/step.py:Step.add_decoding: True -> False": "test_attribution.py::"
    "test_the_last_position_of_a_prompt_is_part_of_it",
    f"{_BATON}/engine/scheduling/scheduler.py:Scheduler.longest_seconds: step.num_prompts > 0 -> (step.num_prompts >= "
    "0)": "test_step.py::test_a_pass_without_prompts_is_judged_by_such_passes",
    f"{_BATON}/engine/kv_cache/offload.py:Offload.take_run: not self.store.num_blocks or begin == len(hashes) -> (not "
    "self.store.num_blocks)": "none: the condition is gone, as a store has no blocks of nothing",
    f"{_BATON}/engine/kv_cache/pool_size.py:pass_bytes: 64 -> 63": "test_pool_size.py::"
    "test_a_pass_holds_logits_of_its_positions_and_of_its_sequences",
    f"{_BATON}/engine/kv_cache/pool_size.py:choose_pool_size: 0 -> 1": "test_pool_size.py::"
    "test_a_number_is_refused_where_others_need_all_that_is_there",
    f"{_BATON}/kv_transport/kv_services.py:_guarded.serve: {{**rpc_attributes(call.path, address), names.KV_TRANSPORT: "
    '"fast"} -> {**rpc_attributes(call.path, address)}': "test_told.py::test_the_sender_s_trace_tells_the_way_too",
    f"{_BATON}/decode/kv_stream/reader.py:: 64 << 20 -> (64 >> 20)": "test_reader.py::"
    "test_small_frames_do_not_wait_for_each_other",
    f"{_BATON}/kv_transport/kv_services.py:FastServer.__init__: advertised or (lambda port: host_port(host, port)) -> "
    "(lambda port: host_port(host, port))": "test_kv_services.py::"
    "test_other_nodes_are_told_the_address_by_which_they_reach_it",
    f"{_BATON}/kv_transport/fast_channel.py:FastStream.first: not self._items and status is not None and status.code "
    "in _NO_PATH and info_of(status.details) is None -> (status is not None and status.code in _NO_PATH and "
    "(info_of(status.details) is None))": "test_kv_services.py::test_a_message_that_came_before_a_refusal_counts",
    f"{_BATON}/decode/kv_stream/remote_prefill.py:RemotePrefill.describe: summary.queue_duration.CopyFrom("
    "duration_from_seconds(queue_seconds)) -> pass": "test_told.py::"
    "test_a_summary_tells_how_long_the_parts_of_a_prefill_took",
    f"{_BATON}/kv/numpy_codec.py:_store: 0x7FFF -> 32766": "test_codecs.py::test_half_a_step_goes_to_the_even_number",
    f"{_BATON}/gateway/access/cors.py:Cors.answer: True -> False": "test_cors.py::"
    "test_a_question_of_a_browser_is_answered_and_no_request_is",
    f'{_BATON}/gateway/access/api_keys.py:ApiKeys.authenticate: raise AuthenticationError("an API key is needed: send '
    'it as `Authorization: Bearer KEY`") -> pass': "test_api_keys.py::test_who_shows_no_key_learns_how",
    f'{_BATON}/gateway/access/cors.py:_permissions: {{ "access-control-allow-methods": "GET, POST, DELETE", '
    '"access-control-allow-headers": request.headers.get("access-control-request-headers", ""), '
    '"access-control-max-age": str(_MAX_AGE_SECONDS), } -> '
    "{'access-control-allow-methods': 'GET, POST, DELETE', 'access-control-allow-headers': "
    "request.headers.get('access-control-request-headers', '')}": "test_cors.py::"
    "test_an_allowed_page_learns_what_it_may_send",
    f"{_BATON}/decode/kv_stream/receive_budget.py:: 64 << 10 -> (64 >> 10)": "test_receive_budget.py::"
    "test_frames_are_no_smaller_than_what_their_headers_are_worth",
    f"{_BATON}/kv_transport/frame_codec.py:_received: message.kind or FrameKind.KV -> (message.kind)": ""
    "test_frame_codec.py::test_a_frame_that_does_not_say_what_it_holds_has_keys_and_values",
    f'{_BATON}/security/tls.py:PublicCertificate._load: context.set_alpn_protocols(["http/1.1"]) -> pass': ""
    "test_https.py::test_a_client_that_would_rather_speak_http_2_is_answered_in_http_1",
}
"""The test that was written because a mutant had survived, by its name."""
