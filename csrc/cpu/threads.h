// A small thread pool: started on first use, restarted after a fork, and never joined at exit.
#pragma once

#include <cstdint>

namespace iet {

// The function that runs: items [begin, end), by worker 0 <= worker < num_threads.
using ParallelBody = void (*)(void* context, int worker, int64_t begin, int64_t end);

// IET_NUM_THREADS, or as many as the process may run on.
int default_num_threads();

// Run `body`, which must not throw, over [0, count) in pieces of `grain` items on the calling thread and up to
// num_threads - 1 of the pool (num_threads <= 0: the default), and return when all are done. Every item runs
// exactly once, by any worker, so results must not depend on the worker. With one worker, or if another call
// uses the pool, all items run as one piece on the calling thread.
void parallel_for(int64_t count, int64_t grain, int num_threads, ParallelBody body, void* context);

// Maximum number of workers of parallel_for for these arguments, to allocate scratch.
int parallel_workers(int64_t count, int64_t grain, int num_threads);

namespace {

// parallel_for of `function(worker, begin, end)`.
template <class Function>
void in_parallel(int64_t count, int64_t grain, int num_threads, Function&& function) {
  const auto body = [](void* context, int worker, int64_t begin, int64_t end) {
    (*static_cast<Function*>(context))(worker, begin, end);
  };
  parallel_for(count, grain, num_threads, body, &function);
}

}  // namespace
}  // namespace iet
