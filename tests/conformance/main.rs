//! One suite over every machine: what a pool promises, whatever driver it stands on.
//!
//! A case is generic over [`machine::Machine`] and gets a function that makes a fresh one. `suite!`
//! makes tests of all cases on one kind of machine; a further driver is a further line at the end. Tests
//! named `real_cuda` want a GPU: they are ignored unless asked for, and skipped where there is none.
#![cfg(feature = "sim")]

#[path = "../support/mod.rs"]
mod support;

mod addresses;
mod buddy;
mod capacity;
#[cfg(all(feature = "cuda", unix))]
mod cuda;
mod figures;
#[cfg(all(feature = "cuda", unix))]
mod gpu;
mod graphs;
mod lifetime;
mod machine;
mod movable;
mod pins;
mod plain;
mod pressure;
mod reuse;
mod stitch;
mod strand;
mod streams;
mod threads;
mod uses;
mod waits;

use machine::Need::{Caches, Extents, OnDemand, Open, Still, Stitching};
use machine::{MIB, Need, Simulated};
use millpond::{
    Buckets, Buddy, Budget, Builder, Caching, Coalescing, Defragmentation, Generations, Growth,
    Planning, Preallocation, Recycling,
};
use millpond_simgpu::Completion;

/// All cases on one kind of machine: a name, and what makes a machine from a number of devices and
/// the bytes of each. Cases behind a bar hold only where pages move, or are the unit that memory is
/// taken in: machines without virtual memory management leave them out, and have cases of their own,
/// in `plain`, for what becomes of those promises.
macro_rules! suite {
    (#[$($mark:tt)*] $name:ident: without virtual memory $make:expr) => {
        suite! { @plain $name, [$($mark)*], $make }
    };
    (#[$($mark:tt)*] $name:ident: $make:expr) => {
        suite! { @list $name, all, [$($mark)*], $make; }
    };
    ($name:ident: without virtual memory $make:expr) => {
        suite! { @plain $name, [], $make }
    };
    ($name:ident: $make:expr) => {
        suite! { @list $name, all, [], $make; }
    };
    (@plain $name:ident, $mark:tt, $make:expr) => {
        suite! {
            @list $name, some, $mark, $make;
            plain: segments_are_shared_and_cut, blocks_lie_in_one_segment, whole_segments_go_back,
                targets_are_met_with_few_segments, nothing_goes_back_before_it_must,
                idle_segments_make_room, each_region_serves_the_other, the_least_will_do,
                pinned_segments_stay, watermarks_take_segments, streams_wait_before_segments_go,
                a_device_that_hangs_is_left_alone, an_address_given_twice,
                captures_begin_while_a_device_is_waited_for, memory_at_the_limit_goes_round;
        }
    };
    (@list $name:ident, $which:ident, $mark:tt, $make:expr; $($own:tt)*) => {
        mod $name {
            suite! { @cases $which, $mark, $make;
                buddy: lasting_blocks_are_kept_together, lasting_memory_moves_when_its_work_is_over,
                    a_chunk_waits_for_what_was_there_before, lasting_blocks_of_many_streams, addresses_in_a_chunk, idle_chunks_go_back,
                    lasting_blocks_fill_the_device, lasting_blocks_outlive_the_pool,
                    who_is_served_from_chunks, everything_from_chunks, lasting_blocks_of_many_threads;
                addresses: aligned_and_disjoint, sizes_around_every_border, thousands_of_one_size,
                    addresses_of_many_devices, everything_goes_back;
                reuse: same_stream_at_once, cross_stream_only_when_ordered,
                    short_memory_moves_between_streams, policy_same_stream, policy_completed,
                    cached_blocks_are_not_stranded
                    // A stream waits where pages could be moved otherwise.
                    | policy_wait;
                uses: recorded_uses_end_with_the_free, last_uses_end_where_declared,
                    later_declarations_replace_earlier_ones, uses_on_the_own_stream,
                    cached_blocks_used_elsewhere_are_stamped_anew, five_user_streams,
                    twenty_user_streams, a_part_of_a_block_of_many_users,
                    uses_by_address_and_from_many_threads, freed_on_other_threads,
                    merged_from_four_streams, merged_from_twelve_streams,
                    used_on_another_device, only_peers_touch_memory;
                waits: waits_are_remembered, waits_cover_nothing_later, waits_are_transitive,
                    transitive_only_in_order, seals_tell_what_was_known_at_them, waits_across_devices,
                    many_streams_wait_for_each_other, many_seals_at_once;
                streams: dropped_with_memory_in_flight, users_may_end_before_the_free,
                    a_thousand_streams, blocks_of_an_earlier_stream_of_the_number,
                    registered_streams_stay_the_callers, clones_are_one_stream;
                capacity: out_of_memory_tells_the_truth, memory_in_flight_is_waited_for,
                    the_driver_runs_out_first, no_memory_at_all
                    // The pages that are moved together, and those that go back.
                    | scattered_pages_are_gathered, trim_gives_back_what_is_idle,
                    trim_keeps_to_targets_between_pages;
                stitch: pages_move_all_the_time
                    // Which pages move, and what becomes of old mappings.
                    | pages_move_under_work_in_flight, pages_go_there_and_back,
                    pages_come_back_while_work_is_in_flight,
                    old_mappings_give_way_when_they_may, tails_of_pages_are_used,
                    a_window_may_end_inside_a_page, a_window_may_start_inside_a_page;
                pins: only_live_blocks_are_pinned, a_pin_keeps_its_pool_open
                    // Whose pages do not move.
                    | pinned_memory_stays_where_it_is, windows_may_include_pinned_memory, pins_add_up;
                graphs: graph_memory_serves_its_graph_alone, captures_reuse_their_own_memory,
                    captured_buffers_outlive_their_graph, graphs_take_no_more_than_they_ask_for, capturing_streams_are_left_alone,
                    graph_memory_dropped_in_another_capture, graph_memory_keeps_its_pool_open;
                pressure: a_callback_makes_room, a_callback_may_allocate, the_report_names_streams,
                    a_share_of_the_device
                    // Within a headroom pages are moved; above a watermark those that are idle go.
                    | no_headroom, a_share_of_headroom, headroom_without_bound, automatic_headroom,
                    watermarks, watermarks_leave_work_in_flight_alone;
                strand: idle_streams_strand_nothing, ten_thousand_streams,
                    ended_streams_keep_no_tables,
                    a_stuck_stream_holds_up_nobody, memory_of_a_stuck_stream_comes_back;
                lifetime: buffers_outlive_stream_and_pool,
                    buffers_outlive_the_pool_on_their_thread, dropped_by_a_stranger,
                    dropped_by_many_at_once, threads_leave_nothing_behind,
                    addresses_in_place_of_buffers, casts_keep_the_memory, clones_are_one_pool,
                    two_pools_over_one_driver;
                figures: live_and_reserved_are_true, hits_add_up
                    // No more pages are taken than were needed.
                    | the_peak_stays;
                threads: many_threads_one_stream, many_threads_many_streams,
                    many_threads_small_blocks, many_threads_short_lived_streams,
                    taken_by_hint_and_by_fit_at_once;
                movable: holes_become_one, idle_memory_goes_back, what_is_in_use_stays,
                    plain_blocks_stay, pins_wait_for_the_copy, the_movers_stream_captures_or_goes, budgets_are_kept,
                    generations_take_turns, dropped_while_moving, threads_pin_while_blocks_move, threads_share_blocks_that_move,
                    refusals, outliving_the_pool, freed_blocks_are_found_again,
                    time_is_measured_without_waiting;
                $($own)*
            }
        }
    };
    (@cases all, $mark:tt, $make:expr;
        $($module:ident: $($case:ident),* $(| $($moving:ident),*)?;)*) => {
        $(suite! { @module $module, $mark, $make; $($case)* $($($moving)*)? })*
    };
    (@cases some, $mark:tt, $make:expr;
        $($module:ident: $($case:ident),* $(| $($moving:ident),*)?;)*) => {
        $(suite! { @module $module, $mark, $make; $($case)* })*
    };
    (@module $module:ident, $mark:tt, $make:expr; $($case:ident)*) => {
        mod $module {
            #[allow(unused_imports, reason = "for the expression that makes the machine")]
            use crate::*;
            $(suite! { @test $mark fn $case() { machine::run(|| crate::$module::$case($make)) } })*
        }
    };
    (@test [] $($case:tt)*) => {
        #[test]
        $($case)*
    };
    (@test [$($mark:tt)*] $($case:tt)*) => {
        #[test]
        #[$($mark)*]
        $($case)*
    };
}

fn lag(lag: u64) -> impl Fn(u16, u64) -> Simulated {
    move |devices, bytes| Simulated::new(Completion::Lag(lag), 0, 2 * MIB, devices, bytes)
}

fn scheduled(seed: u64) -> impl Fn(u16, u64) -> Simulated {
    move |devices, bytes| Simulated::new(Completion::Scheduled, seed, 2 * MIB, devices, bytes)
}

fn small_pages(lag: u64) -> impl Fn(u16, u64) -> Simulated {
    move |devices, bytes| Simulated::new(Completion::Lag(lag), 0, 64 << 10, devices, bytes)
}

/// A mechanism's pools, with completion lagging 7 operations.
fn mechanism(
    lacks: &'static [Need],
    settings: fn(Builder) -> Builder,
) -> impl Fn(u16, u64) -> Simulated {
    move |devices, bytes| lag(7)(devices, bytes).with(settings, lacks)
}

fn plain(make: impl Fn(u16, u64) -> Simulated) -> impl Fn(u16, u64) -> Simulated {
    move |devices, bytes| make(devices, bytes).plain()
}

#[cfg(all(feature = "cuda", unix))]
fn cuda(seed: Option<u64>) -> impl Fn(u16, u64) -> cuda::Cuda {
    move |devices, bytes| cuda::Cuda::new(seed, true, devices, bytes)
}

#[cfg(all(feature = "cuda", unix))]
fn cuda_plain() -> impl Fn(u16, u64) -> cuda::Cuda {
    move |devices, bytes| cuda::Cuda::new(Some(2), false, devices, bytes)
}

#[cfg(all(feature = "cuda", unix))]
fn gpu(virtual_memory: bool) -> impl Fn(u16, u64) -> gpu::Gpu {
    move |devices, _| gpu::Gpu::new(virtual_memory, devices)
}

suite!(lag_0: lag(0));
suite!(lag_7: lag(7));
suite!(lag_50: lag(50));
suite!(scheduled_1: scheduled(1));
suite!(scheduled_2: scheduled(2));
suite!(small_pages: small_pages(7));
suite!(plain_lag_0: without virtual memory plain(lag(0)));
suite!(plain_lag_7: without virtual memory plain(lag(7)));
suite!(plain_scheduled: without virtual memory plain(scheduled(3)));
suite!(unstitched: mechanism(&[Stitching], |pool| pool.stitching(false)));
suite!(no_reuse: mechanism(&[Stitching, Caches], |pool| {
    pool.stitching(false).caching(Caching::Off)
}));
suite!(simple: mechanism(&[Stitching, Open, Caches], |pool| {
    pool.stitching(false).caching(Caching::Simple { limit: u64::MAX })
}));
suite!(bucketed: mechanism(&[Open, Caches], |pool| {
    pool.caching(Caching::Bucketed(Buckets::default()))
}));
suite!(fixed: mechanism(&[OnDemand], |pool| {
    pool.preallocation(Preallocation::Fixed { bytes: u64::MAX })
}));
suite!(growing: mechanism(&[OnDemand], |pool| {
    pool.preallocation(Preallocation::Growing(Growth::default()))
}));
suite!(delayed: mechanism(&[Open, Caches], |pool| pool.recycling(Recycling::default())));
suite!(immediate: mechanism(&[Caches], |pool| pool.coalescing(Coalescing::Immediate)));
suite!(batched: mechanism(&[Open], |pool| pool.coalescing(Coalescing::batched())));
suite!(buddy_for_all: mechanism(&[Stitching, OnDemand, Open, Caches, Extents], |pool| {
    pool.stitching(false).buddy(Buddy::Everything)
}));
suite!(delayed_buddy: mechanism(&[Stitching, Open, Caches], |pool| {
    pool.stitching(false).recycling(Recycling::default())
}));
suite!(planning: mechanism(&[Open], |pool| pool.planned(Planning::default())));
suite!(compacting: mechanism(&[Still], |pool| {
    pool.defragmentation(Defragmentation::Compaction { budget: Budget::Unlimited })
}));
suite!(generations: mechanism(&[Still], |pool| {
    pool.defragmentation(Defragmentation::Generational(Generations::default()))
}));
suite!(plain_bucketed: without virtual memory
plain(mechanism(&[Open, Caches], |pool| {
    pool.caching(Caching::Bucketed(Buckets::default()))
})));
suite!(plain_growing: without virtual memory
plain(mechanism(&[OnDemand], |pool| {
    pool.preallocation(Preallocation::Growing(Growth::default()))
})));
suite!(plain_delayed: without virtual memory
plain(mechanism(&[Open, Caches], |pool| {
    pool.recycling(Recycling::default()).stitching(false)
})));
#[cfg(all(feature = "cuda", unix))]
suite!(cuda_at_once: cuda(None));
#[cfg(all(feature = "cuda", unix))]
suite!(cuda_scheduled: cuda(Some(1)));
#[cfg(all(feature = "cuda", unix))]
suite!(cuda_plain: without virtual memory cuda_plain());
#[cfg(all(feature = "cuda", unix))]
suite!(#[ignore = "wants a GPU: scripts/gpu-check"] real_cuda: gpu(true));
#[cfg(all(feature = "cuda", unix))]
suite!(#[ignore = "wants a GPU: scripts/gpu-check"] real_cuda_plain: without virtual memory gpu(false));
