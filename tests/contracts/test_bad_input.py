"""Which test stands for each line of the bad-input table and of what users of other loaders ran into.

The contract is one table of bad input (error: stopped at once, nothing written; reject: a row in rejects.jsonl with
path and reason, the rest goes on, exit 3; note: converted, and counted in the manifest), for every family of inputs,
and one paragraph on loaders. Here stands each of their cells with its tests.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

BAD = "contracts/bad_input"
TABLE: dict[str, list[str]] = {
    "root missing, empty, no images: error": [
        f"{BAD}/test_folders.py::test_root_missing_empty_or_without_images_is_an_error",
        "contracts/test_inputs.py::test_what_is_not_there_is_an_error",
        "pipeline/cli/test_inspect.py::test_a_folder_without_an_image_is_an_error",
        "converters/test_store_input.py::test_an_empty_prefix_is_an_error",
    ],
    "empty class folder: keep the class, note": [
        f"{BAD}/test_folders.py::test_empty_class_folder_is_kept_and_noted",
        "converters/test_zip_input.py::test_class_folders_with_an_empty_one",
    ],
    "hidden, ._*, Thumbs.db: skip, counted": [
        f"{BAD}/test_folders.py::test_hidden_apple_double_and_thumbs_db_are_skipped_and_counted",
        "converters/test_tar_input.py::test_metadata_hidden_and_system_files_are_skipped_and_counted",
    ],
    "symlink loop, broken link, unreadable, zero bytes: reject": [
        f"{BAD}/test_folders.py::test_damaged_file_is_rejected_with_path_and_reason",
        f"{BAD}/test_folders.py::test_unreadable_file_is_rejected",
        f"{BAD}/test_places.py::test_eio_while_reading_rejects_that_sample",
        "converters/test_table_input.py::test_files_that_cannot_be_samples",
    ],
    "truncated, corrupt, text named .jpg: reject": [
        f"{BAD}/test_folders.py::test_damaged_file_is_rejected_with_path_and_reason",
        "pipeline/decode/test_header.py::test_a_file_cut_in_half_passes_the_header_at_most_and_never_the_decode",
    ],
    "extension differs from content: note, right extension stored": [
        f"{BAD}/test_folders.py::test_extension_differs_from_content_is_noted_and_the_right_one_stored",
    ],
    "decompression bomb, 0xN, absurd header: reject unless allowed": [
        f"{BAD}/test_folders.py::test_damaged_file_is_rejected_with_path_and_reason",
        "converters/test_zip_input.py::test_bombs_are_bounded_by_the_declared_size",
    ],
    "CMYK, 16-bit, alpha, palette, animated, EXIF: note": [
        f"{BAD}/test_folders.py::test_unusual_image_is_stored_and_noted",
    ],
    "broken EXIF, XMP, ICC: note, pixels kept": [
        f"{BAD}/test_folders.py::test_unusual_image_is_stored_and_noted",
        f"{BAD}/test_folders.py::test_broken_exif_xmp_or_icc_keeps_the_pixels",
    ],
    "any exception a decoder can raise: reject": [
        "pipeline/decode/test_header.py::test_anything_a_decoder_raises_becomes_a_rejection_naming_it",
        "converters/test_torch_input.py::test_faulty_samples_are_refused_with_their_reasons",
    ],
    "names with spaces, dots, newlines, quotes, not UTF-8, > 100 bytes: safe key, original name kept exactly": [
        f"{BAD}/test_folders.py::test_names_of_any_bytes_get_a_safe_key_and_are_kept_exactly",
        "converters/test_tar_input.py::test_long_names_and_names_of_any_letters",
    ],
    'class "10" and "2": one documented order, stored': [
        f"{BAD}/test_folders.py::test_classes_10_and_2_have_one_order_as_text",
    ],
    "source changed between plan and run: reject that sample": [
        f"{BAD}/test_places.py::test_source_changed_between_plan_and_run_rejects_that_sample",
        f"{BAD}/test_tables.py::test_table_changed_between_plan_and_run_rejects_or_stops",
        f"{BAD}/test_archives.py::test_archive_changed_between_plan_and_run_rejects_or_stops",
        "converters/test_hf_input.py::test_file_that_changed_after_planning_is_rejected",
        "converters/test_binary_input.py::test_a_file_that_changed_after_planning_is_rejected",
        "converters/test_torch_input.py::test_a_sample_that_changed_after_planning_is_rejected",
        "converters/test_lmdb_input.py::test_an_environment_that_changed_rejects_its_samples",
        "converters/test_store_input.py::test_an_object_that_changed_since_it_was_listed_is_rejected",
    ],
    "source changed before resume: error (fingerprint)": [
        f"{BAD}/test_places.py::test_source_changed_before_resume_is_an_error",
        "converters/test_convert.py::test_unfinished_conversion_refuses_another_source_or_other_options",
    ],
    "CSV column missing: error naming the columns there": [
        f"{BAD}/test_tables.py::test_column_missing_is_an_error_naming_the_columns_there",
        "converters/test_hf_input.py::test_missing_columns_are_errors_naming_those_there",
    ],
    "ragged row, broken quote, bad JSON line: reject with line number": [
        f"{BAD}/test_tables.py::test_ragged_row_and_broken_quote_are_rejected_with_their_line",
        f"{BAD}/test_tables.py::test_bad_json_line_is_rejected_with_its_line",
    ],
    "BOM, UTF-16, Latin-1: read with note, or error": [
        f"{BAD}/test_tables.py::test_bom_utf16_and_latin1_are_read_with_a_note",
        f"{BAD}/test_tables.py::test_utf16_without_a_mark_is_an_error",
    ],
    "label empty, NaN, float, not in the given classes: reject": [
        f"{BAD}/test_tables.py::test_label_empty_nan_or_float_is_rejected",
        f"{BAD}/test_tables.py::test_label_not_in_the_given_classes_is_rejected",
        "contracts/test_inputs.py::test_given_classes_decide_labels_and_refuse_others",
        "converters/test_hf_input.py::test_labels_of_no_use_are_refused",
        "converters/test_tar_input.py::test_labels_that_are_none",
    ],
    "labels of mixed types: error": [
        f"{BAD}/test_tables.py::test_labels_of_mixed_types_are_an_error",
        "converters/test_tar_input.py::test_labels_of_text_and_of_mixed_types",
    ],
    "two rows or files for one key; names equal but for case or extension: both kept, distinct keys": [
        f"{BAD}/test_tables.py::test_two_rows_for_one_key_are_both_kept_with_distinct_keys",
        f"{BAD}/test_folders.py::test_names_equal_but_for_case_or_extension_are_kept_with_distinct_keys",
        f"{BAD}/test_archives.py::test_two_members_of_one_name_are_both_kept",
    ],
    "absolute or .. path, link, device in an archive: reject": [
        f"{BAD}/test_archives.py::test_absolute_or_parent_path_link_and_device_in_a_tar_are_rejected",
        f"{BAD}/test_archives.py::test_absolute_or_parent_path_and_link_in_a_zip_are_rejected",
    ],
    "tar, zip or Parquet cut short: error naming the member; the whole prefix only when asked": [
        f"{BAD}/test_archives.py::test_archive_cut_short_is_an_error_naming_the_member",
        f"{BAD}/test_archives.py::test_prefix_of_an_archive_cut_short_is_taken_only_when_asked",
        f"{BAD}/test_tables.py::test_parquet_cut_short_is_an_error_naming_it",
        "converters/test_binary_input.py::test_idx_cut_short_is_an_error_naming_the_file",
    ],
    "encrypted zip: error; bad CRC: reject": [
        f"{BAD}/test_archives.py::test_encrypted_zip_is_an_error",
        f"{BAD}/test_archives.py::test_bad_crc_rejects_its_sample_alone",
    ],
    "sample without an image or a label: reject, never an empty tensor": [
        f"{BAD}/test_archives.py::test_partial_sample_is_rejected_never_yielded_empty",
        f"{BAD}/test_tables.py::test_sample_without_an_image_or_a_label_is_rejected",
    ],
    "foreign LMDB, cut or garbage: error before mapping it": [
        f"{BAD}/test_archives.py::test_foreign_lmdb_cut_or_garbage_is_an_error_before_mapping_it",
    ],
    "destination exists: error unless it is ours to resume, or --overwrite": [
        f"{BAD}/test_places.py::test_destination_that_exists_is_an_error_unless_overwritten",
        f"{BAD}/test_places.py::test_destination_with_files_of_others_is_an_error_even_with_overwrite",
    ],
    "disk full, quota, map full: error, finished shards kept, resumable": [
        f"{BAD}/test_places.py::test_disk_full_is_an_error_and_the_run_resumes",
        f"{BAD}/test_places.py::test_disk_full_in_the_middle_keeps_finished_shards_and_resumes",
        f"{BAD}/test_places.py::test_map_full_is_enlarged_and_nothing_is_lost",
        f"{BAD}/test_places.py::test_full_temporary_folder_is_named_and_not_the_destination",
        "converters/test_interruptions.py::test_file_size_limit_is_an_error_that_loses_nothing",
    ],
}
"""Cell of the table, "input: what happens", to its tests."""

LOADERS: dict[str, list[str]] = {
    "fewer shards than workers": [
        "pipeline/loader/test_known_troubles.py::test_fewer_shards_than_workers_still_give_every_sample_once",
    ],
    "workers x ranks not dividing shards or samples": [
        "contracts/test_loader_contract.py::test_ranks_share_an_epoch_as_the_tail_says",
    ],
    "doubled samples under DDP": [
        "contracts/test_loader_contract.py::test_ranks_share_an_epoch_as_the_tail_says",
        "pipeline/sampling/test_order.py::test_each_sample_is_seen_as_often_as_its_tail_says",
    ],
    "uneven steps hanging the last batch": [
        "contracts/test_loader_contract.py::test_ranks_share_an_epoch_as_the_tail_says",
        "pipeline/loader/test_images.py::test_a_rank_with_no_batch_in_any_epoch_ends_at_once",
    ],
    "resume restarting at 0, after an epoch's end, before the first batch": [
        "pipeline/loader/test_known_troubles.py::"
        "test_resuming_before_the_first_batch_or_after_the_last_with_other_workers",
        "contracts/test_loader_contract.py::test_a_resumed_run_equals_the_uninterrupted_one",
    ],
    "resume with another number of workers or ranks": [
        "contracts/test_loader_contract.py::test_a_state_resumes_with_another_batch_size_and_other_ranks",
        "pipeline/sampling/test_order.py::test_a_run_resumed_on_other_ranks_and_batches_sees_just_what_was_left",
    ],
    "memory growing through copy-on-write Python lists": [
        "pipeline/loader/test_known_troubles.py::test_workers_share_the_index_instead_of_copying_it",
        "pipeline/formats/test_sources.py::test_pickles_small_and_reads_in_a_fresh_process",
    ],
    "persistent workers growing": [
        "pipeline/loader/test_known_troubles.py::test_persistent_workers_do_not_grow_from_epoch_to_epoch",
    ],
    "/dev/shm bus errors": [
        "pipeline/loader/test_backends.py::test_shared_memory_that_is_too_small_is_said_before_the_first_batch",
        "pipeline/loader/test_parcels.py::test_shared_memory_that_others_fill_meanwhile_is_an_error_and_no_bus_error",
    ],
    "stale segments after a crash": [
        "pipeline/loader/test_known_troubles.py::test_a_killed_loader_leaves_no_segment_and_no_worker",
        "pipeline/loader/test_clean_end.py::test_ctrl_c_leaves_nothing",
    ],
    "label shift when a class is missing in one split": [
        "converters/test_selection.py::test_split_is_by_class_with_one_class_list",
        "converters/test_hf_input.py::test_a_class_that_is_absent_shifts_nothing",
    ],
    "a hidden folder becoming a class": [f"{BAD}/test_folders.py::test_a_hidden_folder_is_no_class"],
    "reading hanging after fork with an open LMDB": [
        "pipeline/formats/test_sources.py::test_a_forked_child_reads_after_its_parent",
        "pipeline/formats/test_sources.py::test_a_fork_while_another_thread_reads",
    ],
    "MAP_FULL": ["converters/test_interruptions.py::test_full_map_is_enlarged_and_its_transaction_written_again"],
    "a nondeterministic order": [
        "contracts/test_loader_contract.py::test_every_backend_and_storage_gives_the_same_two_epochs",
    ],
    "last-batch padding counted as samples": [
        "contracts/test_loader_contract.py::test_ranks_share_an_epoch_as_the_tail_says",
    ],
}
"""What users of other loaders ran into, to its tests."""

TESTS = Path(__file__).parent.parent


@cache
def functions_in(file: str) -> frozenset[str]:
    """Names of the test functions that pytest collects from a file."""
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("line", [*TABLE, *LOADERS])
def test_each_line_has_tests_that_exist(line: str) -> None:
    tests = TABLE.get(line) or LOADERS[line]
    missing = [test for test in tests if test.partition("::")[2] not in functions_in(test.partition("::")[0])]
    assert missing == []


def test_a_test_that_is_gone_would_be_noticed() -> None:
    assert "test_a_hidden_folder_is_no_class" in functions_in(f"{BAD}/test_folders.py")
    assert "test_that_nobody_wrote" not in functions_in(f"{BAD}/test_folders.py")
