// The handlers of SIGSEGV that others have installed, to whom faults are passed that aren't ours.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <mutex>

namespace headrace::deferred {

using Handler = void (*)(int, siginfo_t*, void*);

class FormerHandlers {
 public:
  // Installs `handler` unless it is the one in use; the one that was in use before comes next.
  // False if the system refuses.
  bool stay_in_front(Handler handler);

  // Called by the handler for a fault that isn't ours. What a handler in turn passes on, by raising
  // the signal or by calling ours, goes to the one before it, and at last to the default action.
  void pass_on(int number, siginfo_t* info, void* context);

  void before_fork() { changing_.lock(); }
  void after_fork() { changing_.unlock(); }
  // In a forked child.
  void forget_thread() { passing_.store(0); }

 private:
  static constexpr int kMost = 8;

  struct sigaction actions_[kMost] = {};
  std::atomic<int> count_{0};
  std::mutex changing_;
  std::atomic<pid_t> passing_{0};  // the thread that is in pass_on()
  int left_ = 0;                   // handlers that it hasn't called
};

}  // namespace headrace::deferred
