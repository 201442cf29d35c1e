#!/bin/sh
# run_ranks.sh BUILD_FOLDER N PROGRAM ARGUMENTS...: N processes by mpirun; status 77 and a reason where there is no MPI.
build=$1
ranks=$2
shift 2
if ! command -v mpirun >/dev/null; then
    echo "skipped: no mpirun here (on Debian: openmpi-bin)"
    exit 77
fi
if [ ! -e "$build/libmx8_mpi.so" ]; then
    echo "skipped: mx8 was built without MPI (on Debian: libopenmpi-dev)"
    exit 77
fi
# Open MPI keeps memory to its end; it is not what the sanitized tests look for
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive MX8_MPI_LIBRARY="$build/libmx8_mpi.so"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
exec mpirun -n "$ranks" "$@"
