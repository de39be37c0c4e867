#include "deferred/memory.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <mutex>

#include "deferred/former.h"

namespace headrace::deferred {
namespace {

Space* space = nullptr;  // never freed: a fault may come at any time
Stack* wanted = nullptr;
FormerHandlers former;
std::atomic<uint32_t> calls{0};    // changes with each slot that is wanted
std::atomic<uint32_t> process{1};  // counts forks
std::atomic<bool> filler_runs{false};
std::atomic<pid_t> filler{0};  // its thread
std::atomic<int64_t> faults{0};

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain number");

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Until `word` isn't `value` any more; may return sooner.
void wait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void complain() {
  constexpr char kText[] =
      "headrace: memory of an image or array could not be filled when it was first touched; the "
      "process ends. This happens if there is no memory or thread left.\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

void* serve(void*) {
  filler.store(this_thread());
  for (;;) {
    const uint32_t seen = calls.load();
    const uint32_t number = wanted->pop();
    if (number == Stack::kNone) {
      wait(&calls, seen);
      continue;
    }
    Slot& slot = space->slot(number);
    space->fill(number);
    wake(&slot.state, INT_MAX);
  }
  return nullptr;
}

// Called by a signal handler as well, in a forked child. The thread takes no signals but its own
// faults: those of the program are for the program's threads.
bool ensure_filler() {
  if (filler_runs.exchange(true)) return true;
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&all, fault);
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool created = pthread_create(&thread, &attributes, serve, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (!created) filler_runs.store(false);
  return created;
}

// Whether the fault was the first touch of a slot, which is filled now.
bool filled_for(const siginfo_t* info) {
  const bool by_kernel = info->si_code > 0;  // else a signal that was sent, without an address
  if (!by_kernel || this_thread() == filler.load()) return false;
  const uint32_t number = space->find(info->si_addr);
  if (number == Stack::kNone) return false;
  faults.fetch_add(1);
  Slot& slot = space->slot(number);
  slot.change(State::kUntouched, State::kWanted);
  if (slot.now() == State::kWanted && !ensure_filler()) {
    complain();
    return false;
  }
  const uint32_t here = process.load();
  if (slot.now() == State::kWanted && slot.asked.exchange(here) != here) {
    wanted->push(number);
    calls.fetch_add(1);
    wake(&calls, 1);
  }
  while (slot.now() == State::kWanted) wait(&slot.state, static_cast<uint32_t>(State::kWanted));
  if (slot.now() == State::kFailed) complain();
  return slot.now() == State::kFilled;
}

void on_fault(int number, siginfo_t* info, void* context) {
  const int before = errno;
  if (!filled_for(info)) former.pass_on(number, info, context);
  errno = before;
}

void before_fork() {
  space->before_fork();
  former.before_fork();
}

void after_fork() {
  former.after_fork();
  space->after_fork();
}

void in_child() {
  after_fork();
  former.forget_thread();
  space->forget_fill();
  wanted->clear();  // by threads that the child hasn't got
  process.fetch_add(1);
  filler.store(0);
  filler_runs.store(false);
}

const char* begin() {
  auto* const reserved = new Space;
  if (const char* problem = reserved->reserve()) return problem;
  wanted = new Stack;
  wanted->reserve(reserved->count());
  space = reserved;
  if (pthread_atfork(before_fork, after_fork, in_child) != 0) return "there is no memory left";
  return ensure_filler() ? nullptr : "no thread can be started";
}

}  // namespace

const char* start() {
  static const char* const problem = begin();
  if (problem == nullptr) former.stay_in_front(on_fault);
  return problem;
}

void* take(uint64_t size, hr_fill fill, void* context) {
  if (start() != nullptr || !former.stay_in_front(on_fault)) return nullptr;
  const uint32_t number = space->take(size);
  if (number == Stack::kNone) return nullptr;
  Slot& slot = space->slot(number);
  slot.fill = fill;
  slot.context = context;
  slot.size = size;
  slot.asked.store(0);
  slot.become(State::kUntouched);
  return space->bytes_of(number);
}

State state_of(const void* memory) {
  const uint32_t number = space == nullptr ? Stack::kNone : space->find(memory);
  return number == Stack::kNone ? State::kFree : space->slot(number).now();
}

void* untouched_context(const void* memory) {
  const uint32_t number = space == nullptr ? Stack::kNone : space->find(memory);
  if (number == Stack::kNone) return nullptr;
  const Slot& slot = space->slot(number);
  return slot.now() == State::kUntouched ? slot.context : nullptr;
}

void give_back(void* memory) {
  const uint32_t number = space == nullptr ? Stack::kNone : space->find(memory);
  if (number == Stack::kNone) return;
  Slot& slot = space->slot(number);
  // A thread that touches memory while another frees it has to be done first; in a forked child
  // there is no such thread.
  while (slot.now() == State::kWanted && slot.asked.load() == process.load())
    wait(&slot.state, static_cast<uint32_t>(State::kWanted));
  if (slot.now() == State::kFilled)
    space->put_back(number);
  else
    space->put_back_untouched(number);
}

void read_counts(hr_deferred_counts* counts) {
  *counts = {};
  if (space != nullptr) *counts = space->counts();
  counts->faults = faults.load();
}

}  // namespace headrace::deferred
