#!/bin/sh
# Compiles the workspace's own crates with coverage counters for the engine; cargo calls it in place of rustc
# (RUSTC_WORKSPACE_WRAPPER). Build scripts and macros are built for the machine, without `--target`, and get none.
case " $* " in
*" --target "*)
	exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
		-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
		-Cllvm-args=-sanitizer-coverage-trace-compares
	;;
esac
exec "$@"
