#include "threads.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace iet {
namespace {

constexpr int kMaxThreads = 256;

struct Pool {
  std::mutex in_use;  // locked by the call that uses the workers

  std::mutex mutex;  // guards the fields below
  std::condition_variable work, done;
  int started = 0;          // threads of the pool
  uint64_t generation = 0;  // of the job; a worker takes part in each at most once
  int wanted = 0;           // workers that may still join the job
  int running = 0;          // workers that have joined and are not done

  ParallelBody body = nullptr;
  void* context = nullptr;
  int64_t count = 0, grain = 1;
  std::atomic<int64_t> next{0};

  void run_pieces(int worker) {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      body(context, worker, begin, begin + grain < count ? begin + grain : count);
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    uint64_t served = 0;
    for (;;) {
      work.wait(lock, [&] { return wanted > 0 && generation != served; });
      served = generation;
      const int worker = wanted--;
      ++running;
      lock.unlock();
      run_pieces(worker);
      lock.lock();
      if (--running == 0) done.notify_one();
    }
  }
};

// Never destroyed, because its threads wait in it until the process ends.
std::atomic<Pool*> current_pool{nullptr};

Pool& pool() {
  Pool* current = current_pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
#if !defined(_WIN32)
  // A forked child has a copy of the pool without its threads, and perhaps with a locked mutex, so it makes a
  // new pool. Registered before the first pool exists.
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); }); });
#endif
  Pool* created = new Pool;
  if (current_pool.compare_exchange_strong(current, created)) return *created;
  delete created;
  return *current;
}

int allowed_cores() {
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

int default_num_threads() {
  static const int threads = [] {
    const char* setting = std::getenv("IET_NUM_THREADS");
    const int number = setting != nullptr ? std::atoi(setting) : 0;  // iet/native/load.py has checked it
    const int count = number > 0 ? number : allowed_cores();
    return count < 1 ? 1 : count < kMaxThreads ? count : kMaxThreads;
  }();
  return threads;
}

int parallel_workers(int64_t count, int64_t grain, int num_threads) {
  const int64_t pieces = (count + grain - 1) / grain;
  int64_t workers = num_threads > 0 ? num_threads : default_num_threads();
  if (workers > kMaxThreads) workers = kMaxThreads;
  if (workers > pieces) workers = pieces;
  return workers < 1 ? 1 : static_cast<int>(workers);
}

void parallel_for(int64_t count, int64_t grain, int num_threads, ParallelBody body, void* context) {
  if (count <= 0) return;
  const int workers = parallel_workers(count, grain, num_threads);
  if (workers == 1) return body(context, 0, 0, count);
  Pool& p = pool();
  const std::unique_lock<std::mutex> in_use(p.in_use, std::try_to_lock);
  if (!in_use.owns_lock()) return body(context, 0, 0, count);
  {
    std::unique_lock<std::mutex> lock(p.mutex);
    p.body = body, p.context = context, p.count = count, p.grain = grain;
    p.next.store(0, std::memory_order_relaxed);
    while (p.started < workers - 1) {
      try {
        std::thread([&p] { p.serve(); }).detach();
      } catch (const std::system_error&) {
        break;  // no more threads are available, so the existing ones do the work
      }
      ++p.started;
    }
    ++p.generation;
    p.wanted = workers - 1 < p.started ? workers - 1 : p.started;
  }
  p.work.notify_all();
  p.run_pieces(0);
  // Do not wait for workers that have not woken yet; they may not join this job later.
  std::unique_lock<std::mutex> lock(p.mutex);
  p.wanted = 0;
  p.done.wait(lock, [&] { return p.running == 0; });
}

}  // namespace iet
