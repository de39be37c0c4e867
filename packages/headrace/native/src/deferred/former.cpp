#include "deferred/former.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace headrace::deferred {
namespace {

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

bool is_same(const struct sigaction& action, Handler handler) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handler;
}

// What happens without a handler: the instruction runs again, and its fault ends the process.
void leave_to_kernel(int number, const siginfo_t* info) {
  signal(number, SIG_DFL);
  if (info->si_code <= 0) raise(number);  // it was sent, and is not repeated
}

}  // namespace

bool FormerHandlers::stay_in_front(Handler handler) {
  struct sigaction now = {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return false;
  if (is_same(now, handler)) return true;
  const std::lock_guard<std::mutex> guard(changing_);
  struct sigaction ours = {};
  ours.sa_sigaction = handler;
  // Not SA_ONSTACK: an alternate stack may be in use already, and is of any size.
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  if (sigaction(SIGSEGV, &ours, &now) != 0) return false;
  if (is_same(now, handler)) return true;  // another thread was faster
  int count = count_.load();
  if (count == kMost) --count;
  actions_[count] = now;
  count_.store(count + 1);
  return true;
}

void FormerHandlers::pass_on(int number, siginfo_t* info, void* context) {
  const pid_t self = this_thread();
  pid_t nobody = 0;
  const bool first = passing_.compare_exchange_strong(nobody, self);
  const bool again = !first && passing_.load() == self;
  const int left = again ? left_ : count_.load();
  const struct sigaction* const action = left > 0 ? &actions_[left - 1] : nullptr;
  if (first || again) left_ = left - 1;
  const sighandler_t handler = action != nullptr ? action->sa_handler : SIG_DFL;
  if (action != nullptr && (action->sa_flags & SA_SIGINFO) != 0) {
    action->sa_sigaction(number, info, context);
  } else if (handler != SIG_DFL && handler != SIG_IGN) {
    handler(number);
  } else if (handler == SIG_DFL || info->si_code > 0) {  // the kernel lets nobody ignore a fault
    leave_to_kernel(number, info);
  }
  if (first) passing_.store(0);
}

}  // namespace headrace::deferred
