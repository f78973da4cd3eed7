// A small pool of threads of our own: started on first use, gone after a fork, never in anybody's way at exit.
#pragma once

#include <cstdint>

namespace iet {

// What runs: items [begin, end), by worker number 0 <= worker < the threads asked for.
using ParallelBody = void (*)(void* context, int worker, int64_t begin, int64_t end);

// IET_NUM_THREADS, or as many as the process may run on.
int default_num_threads();

// Run `body`, which must not throw, over [0, count) in pieces of `grain` items on the calling thread and up to
// num_threads - 1 of the pool (num_threads <= 0: the default), and return when all are done. Every item runs
// exactly once; which worker runs it differs from call to call, so results must not depend on that. With one
// worker, and where another thread's call has the pool at work, all is one piece on the calling thread.
void parallel_for(int64_t count, int64_t grain, int num_threads, ParallelBody body, void* context);

// How many workers parallel_for uses at most for these arguments: how much scratch to bring.
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
