//! Which options go together.

use crate::args::{AllocatorName, ReplayArgs};
use crate::gpus::Gpus;
use crate::mechanism::Mechanism;
use anyhow::bail;

/// Refuses what has no meaning on these GPUs or for this allocator.
pub(super) fn check(args: &ReplayArgs, gpus: &Gpus) -> anyhow::Result<()> {
    let peer = args.allocator != AllocatorName::Pool;
    let real = matches!(gpus, Gpus::Cuda(_));
    if peer && !real {
        bail!(
            "--allocator {}: simulated GPUs have no allocator of their own (use --driver cuda)",
            args.allocator.name()
        );
    }
    if args.mechanism != Mechanism::Pool && peer
        || args.mechanism.counts_steps() && args.threads > 1
    {
        bail!(
            "--mechanism {}: steps are those of one copy of a trace, through the pool",
            args.mechanism.name()
        );
    }
    if args.plan.is_some() && args.mechanism != Mechanism::Planned {
        bail!("--plan is for --mechanism planned");
    }
    let of_simulated = [
        ("--lag", args.lag.is_some(), "work takes the time that it takes"),
        ("--oracle", args.oracle, "nobody sees what work touches"),
        ("--costs", args.costs.is_some(), "calls take the time that they take"),
    ];
    for (option, given, why) in of_simulated {
        if given && real {
            bail!("{option}: on real GPUs {why} (use --driver sim)");
        }
    }
    if args.fold && !real {
        bail!("--fold: there are as many simulated GPUs as a trace names (use --driver cuda)");
    }
    let of_the_pool = [
        ("--reuse", args.reuse.is_some()),
        ("--capacity", args.capacity.is_some()),
        ("--headroom", args.headroom.is_some()),
        ("--page", args.page.is_some()),
        ("--plain", args.plain),
    ];
    for (option, given) in of_the_pool {
        if given && peer {
            bail!(
                "{option} is a setting of the pool, and --allocator {} is none",
                args.allocator.name()
            );
        }
    }
    if args.release_threshold.is_some() && args.allocator != AllocatorName::CudaAsync {
        bail!("--release-threshold is a setting of --allocator cuda-async");
    }
    Ok(())
}
